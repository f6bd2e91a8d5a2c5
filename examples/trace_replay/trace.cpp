// SPDX-License-Identifier: Apache-2.0
#include "trace.hpp"

#include <algorithm>
#include <climits>
#include <functional>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <unordered_map>

namespace replay {

using pagedkv::TokenId;

char const* to_string(Format format) noexcept {
  switch (format) {
    case Format::mooncake: return "mooncake";
    case Format::claude_code: return "claude_code";
    case Format::token_ids: return "token_ids";
    case Format::agent_text: return "agent_text";
    case Format::azure: return "azure";
  }
  return "unknown";
}

TokenId UniqueTokens::next() {
  if (last_ == pagedkv::unknown_token + 1) {
    throw std::runtime_error(
        "the trace needs more than 2,147,483,647 unique tokens; use --limit to replay less of it");
  }
  return --last_;
}

void Trace::write_prompt(Request const& request, UniqueTokens& unique,
                         std::vector<TokenId>& out) const {
  auto const length = static_cast<std::size_t>(request.prompt_tokens);
  auto const first = static_cast<std::ptrdiff_t>(request.prompt.first);
  out.resize(length);
  std::size_t written = 0;
  if (block_tokens > 0) {
    for (std::int32_t i = 0; i < request.prompt.count && written < length; ++i) {
      IdRun const run = runs[request.prompt.first + static_cast<std::size_t>(i)];
      auto const end = std::min(length, written + static_cast<std::size_t>(run.count) *
                                                      static_cast<std::size_t>(block_tokens));
      std::iota(out.begin() + static_cast<std::ptrdiff_t>(written),
                out.begin() + static_cast<std::ptrdiff_t>(end), run.first * block_tokens);
      written = end;
    }
  } else if (format == Format::token_ids) {
    std::copy_n(tokens.begin() + first, length, out.begin());
    written = length;
  } else if (format == Format::agent_text) {
    std::transform(bytes.begin() + first, bytes.begin() + first + request.prompt_tokens,
                   out.begin(), [](char c) { return TokenId{static_cast<unsigned char>(c)}; });
    written = length;
  }
  for (; written < length; ++written) out[written] = unique.next();
}

TokenId Trace::output_token(Request const& request, std::int32_t index,
                            UniqueTokens& unique) const {
  if (index >= request.output.count) return unique.next();
  std::size_t const at = request.output.first + static_cast<std::size_t>(index);
  return format == Format::token_ids ? tokens[at] : TokenId{static_cast<unsigned char>(bytes[at])};
}

std::int32_t Trace::longest_request() const noexcept {
  std::int32_t longest = 0;
  for (Request const& r : requests) longest = std::max(longest, r.prompt_tokens + r.output_tokens);
  return longest;
}

std::int32_t Trace::longest_prompt() const noexcept {
  std::int32_t longest = 0;
  for (Request const& r : requests) longest = std::max(longest, r.prompt_tokens);
  return longest;
}

std::int64_t Trace::prompt_blocks(std::int32_t block_size) const noexcept {
  std::int64_t blocks = 0;
  for (Request const& r : requests) blocks += r.prompt_tokens / block_size;
  return blocks;
}

namespace {

/// Names an id together with all ids in front of it (splitmix64's finalizer).
std::uint64_t chain(std::uint64_t parent, std::uint64_t id) noexcept {
  std::uint64_t x = (parent ^ id) + 0x9e3779b97f4a7c15U + (parent << 6);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace

std::int64_t Trace::distinct_prompt_blocks(std::int32_t block_size) const {
  if (block_tokens == 0) return prompt_blocks(block_size);
  // A node is an id behind its prefix; it counts the block ends inside its tokens. A last id may
  // stand for fewer tokens in one prompt than in another: the most counts.
  std::unordered_map<std::uint64_t, std::int32_t> ends_of;
  std::int64_t unnamed = 0;
  for (Request const& request : requests) {
    std::uint64_t node = 0;
    std::int32_t begin = 0;
    for (std::int32_t i = 0; i < request.prompt.count; ++i) {
      IdRun const run = runs[request.prompt.first + static_cast<std::size_t>(i)];
      for (std::int32_t j = 0; j < run.count && begin < request.prompt_tokens; ++j) {
        std::int32_t const end = begin + std::min(block_tokens, request.prompt_tokens - begin);
        std::int32_t const ends = end / block_size - begin / block_size;
        node = chain(node, static_cast<std::uint64_t>(run.first) + static_cast<std::uint64_t>(j));
        std::int32_t& most = ends_of[node];
        most = std::max(most, ends);
        begin = end;
      }
    }
    unnamed += request.prompt_tokens / block_size - begin / block_size;
  }
  for (auto const& [node, ends] : ends_of) unnamed += ends;
  return unnamed;
}

void arrange_closed_loop(Trace& trace, std::int32_t users) {
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> free_at;
  for (std::int32_t user = 0; user < users; ++user) free_at.push(0);
  std::vector<Request>& requests = trace.requests;
  for (std::size_t i = 0; i < requests.size();) {
    std::int64_t const start = free_at.top();
    free_at.pop();
    std::int32_t const session = requests[i].session;
    std::int64_t last = start;
    for (; i < requests.size() && requests[i].session == session; ++i) {
      last = requests[i].arrival_ns += start;
    }
    free_at.push(last);
  }
  std::stable_sort(requests.begin(), requests.end(), [](Request const& a, Request const& b) {
    return a.arrival_ns != b.arrival_ns ? a.arrival_ns < b.arrival_ns : a.session < b.session;
  });
}

}  // namespace replay
