// SPDX-License-Identifier: Apache-2.0
/// \file
/// Traces for the tests, read here without the program's readers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "naive_pool.hpp"

namespace naive {

inline std::vector<nlohmann::json> read_lines(std::string const& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

inline std::vector<Prompt> read_mooncake(std::string const& path) {
  std::vector<Prompt> prompts;
  for (auto const& line : read_lines(path)) {
    prompts.push_back({line.at("input_length"), line.at("hash_ids")});
  }
  return prompts;
}

/// Closed loop: an event queue of users, who take the session with the next number.
inline std::vector<Prompt> read_claude_code(std::string const& path, std::size_t users,
                                            std::size_t limit) {
  auto const sessions = read_lines(path);
  std::vector<std::vector<std::vector<std::int64_t>>> ids(sessions.size());
  for (std::size_t s = 0; s < sessions.size(); ++s) {
    for (auto const& request : sessions[s].at("requests")) {
      std::vector<std::int64_t> own;
      if (std::int64_t const base = request.at("base"); base >= 0) {
        auto const& from = ids[s].at(static_cast<std::size_t>(base));
        own.assign(from.begin(), from.begin() + request.at("keep").get<std::ptrdiff_t>());
      }
      auto const& added = request.at("new");
      for (std::size_t i = 0; i < added.size(); i += 2) {
        for (std::int64_t j = 0; j < added[i + 1]; ++j) {
          own.push_back(added[i].get<std::int64_t>() + j);
        }
      }
      ids[s].push_back(std::move(own));
    }
  }
  // (milliseconds, session, request)
  using Event = std::tuple<std::int64_t, std::size_t, std::size_t>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  std::vector<std::int64_t> start(sessions.size());
  std::size_t next = 0;
  auto const take_session = [&](std::int64_t now) {
    if (next == sessions.size()) return;
    start[next] = now;
    events.push({now, next, 0});
    ++next;
  };
  for (std::size_t user = 0; user < users; ++user) take_session(0);
  std::vector<Prompt> prompts;
  while (!events.empty() && prompts.size() < limit) {
    auto const [now, s, r] = events.top();
    events.pop();
    auto const& requests = sessions[s].at("requests");
    prompts.push_back({requests[r].at("input_length"), ids[s][r]});
    if (r + 1 == requests.size()) {
      take_session(now);
    } else {
      double const t = requests[r + 1].at("t");
      events.push({start[s] + static_cast<std::int64_t>(t * 1000 + 0.5), s, r + 1});
    }
  }
  return prompts;
}

/// The recorded traces; empty where this machine doesn't have them.
inline std::string recorded(std::string const& name) {
  std::string const path = PAGEDKV_SOURCE_DIR "/../shared/data/" + name;
  return std::filesystem::exists(path) ? path : std::string();
}

}  // namespace naive
