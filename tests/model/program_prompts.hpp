// SPDX-License-Identifier: Apache-2.0
/// \file
/// What the sequences of a random program say.
#pragma once

#include "program.hpp"

namespace pagedkv::testing {

template <class Policy>
std::shared_ptr<NaiveKey const> Program<Policy>::make_prompt() {
  // The very same prompt again: retries, resumed requests, twins.
  if (!histories_.empty() && choices_.one_in(greedy_ ? 2 : 4)) return choices_.pick(histories_);
  auto key = std::make_shared<NaiveKey>();
  if (!histories_.empty() && !choices_.one_in(6)) {
    *key = *choices_.pick(histories_);
    cut_prompt(*key);
  }
  name_prompt(*key);
  lengthen_prompt(*key);
  if (choices_.one_in(10) && key->num_tokens() > 0) {
    // The extent belongs to the item's name.
    NaiveMedia m;
    m.count = choices_.between(1, std::min(3, key->num_tokens()));
    m.id = std::string(1, char('p' + choices_.below(2))) + std::to_string(m.count);
    m.first = choices_.between(0, key->num_tokens() - m.count);
    if (key->media.empty()) key->media.push_back(m);
  }
  if (key->tokens.empty() && !choices_.one_in(8)) key->tokens.push_back(0);
  remember(key);
  return key;
}

template <class Policy>
void Program<Policy>::cut_prompt(NaiveKey& key) {
  int cut = choices_.between(0, key.num_tokens());
  if (choices_.one_in(3)) cut -= cut % config_.block_tokens;
  if (choices_.one_in(4)) cut = key.num_tokens();
  key.tokens.resize(std::size_t(cut));
  drop_media_behind(key, cut);
}

template <class Policy>
void Program<Policy>::drop_media_behind(NaiveKey& key, int end) {
  std::erase_if(key.media, [&](NaiveMedia const& m) { return m.first + m.count > end; });
}

template <class Policy>
void Program<Policy>::name_prompt(NaiveKey& key) {
  if (!choices_.one_in(8)) return;
  static char const* const names[] = {"", "a", "b"};
  key.salt = names[choices_.below(3)];
  key.adapter = names[choices_.below(3)];
  key.adapter_generation = key.adapter.empty() ? 0 : std::uint64_t(choices_.below(2));
}

template <class Policy>
void Program<Policy>::lengthen_prompt(NaiveKey& key) {
  int const limit = choices_.one_in(24) ? longest_ : longest_usual_;
  int size = key.num_tokens() + choices_.between(0, std::max(0, limit - key.num_tokens()));
  if (aligned_ && !choices_.one_in(4)) {
    size = std::max(key.num_tokens(), size - size % config_.block_tokens);
  }
  bool const monotone = choices_.one_in(2);
  int token = choices_.below(alphabet_);
  while (key.num_tokens() < size) {
    if (!monotone) token = choices_.below(alphabet_);
    key.tokens.push_back(greedy_ && monotone ? greedy_token(key.tokens) : token);
  }
}

template <class Policy>
void Program<Policy>::remember(std::shared_ptr<NaiveKey const> key) {
  if (histories_.size() < 24) {
    histories_.push_back(std::move(key));
  } else {
    histories_[std::size_t(choices_.below(24))] = std::move(key);
  }
}

template <class Policy>
ExtraKeys Program<Policy>::extra_keys(NaiveKey const& key, std::vector<MediaItem>& media) {
  for (auto const& m : key.media) media.push_back({{m.first, m.count}, m.id});
  return {key.salt, key.adapter, key.adapter_generation, media};
}

template <class Policy>
Tokens Program<Policy>::goal_for(NaiveKey const& key) {
  if (!choices_.one_in(3)) return key.tokens;
  return choices_.pick(histories_)->tokens;
}

template <class Policy>
int Program<Policy>::growth() {
  switch (choices_.below(8)) {
    case 0: return 0;
    case 1: return config_.block_tokens;
    case 2: return choices_.below(2 * config_.block_tokens + 1);
    case 3: return choices_.below(longest_usual_ + 1);
    default: return 1;
  }
}

template <class Policy>
Tokens Program<Policy>::next_tokens(Live const& s, int n) {
  Tokens out;
  if (greedy_) {
    Tokens all(s.model.tokens.begin(), s.model.tokens.begin() + std::ptrdiff_t(s.kv.size()));
    for (int i = 0; i < n; ++i) {
      out.push_back(greedy_token(all));
      all.push_back(out.back());
    }
    return out;
  }
  bool const obedient = !choices_.one_in(8);
  int const other = choices_.below(alphabet_);
  int const from = int(s.kv.size());
  for (int i = 0; i < n; ++i) {
    bool const has_goal = obedient && from + i < int(s.goal.size());
    out.push_back(has_goal ? s.goal[std::size_t(from + i)] : other);
  }
  return out;
}

template <class Policy>
TokenId Program<Policy>::greedy_token(Tokens const& before) const {
  std::uint64_t text = before.size() / 4;
  for (std::size_t i = before.size() - std::min<std::size_t>(3, before.size()); i < before.size();
       ++i) {
    text = mix(text, std::uint64_t(before[i]));
  }
  return TokenId(text % std::uint64_t(alphabet_));
}

template <class Policy>
auto Program<Policy>::any_live() -> Live* {
  if (live_.empty()) return nullptr;
  return live_[std::size_t(choices_.below(int(live_.size())))].get();
}

template <class Policy>
std::vector<int> Program<Policy>::row_of(Live const& s) const {
  std::vector<int> out;
  for (auto const b : s.handle->blocks()) out.push_back(b.value());
  return out;
}

template <class Policy>
void Program<Policy>::forget_from(Live& s, int n) {
  if (int(s.kv.size()) > n) s.kv.resize(std::size_t(n));
  s.written = std::min(s.written, n);
}

template <class Policy>
void Program<Policy>::learn(Live& s) {
  auto const& tokens = s.model.tokens;
  for (int p = int(s.kv.size()); p < s.model.size(); ++p) {
    if (tokens[std::size_t(p)] == unknown_token) return;
    std::uint64_t const before = p == 0 ? kv_before_first(s.model.key) : s.kv.back();
    s.kv.push_back(kv_after(before, s.model.key, p, tokens[std::size_t(p)]));
  }
}

template <class Policy>
template <class... Parts>
void Program<Policy>::note(Parts const&... parts) {
  if (log == nullptr) return;
  log->push_back(join(step_, ": ", parts...));
}

template <class Policy>
std::string Program<Policy>::text(Tokens const& tokens) const {
  if (log == nullptr) return {};
  std::string out = join("[", tokens.size(), ":");
  for (std::size_t i = 0; i < tokens.size() && i < 40; ++i) {
    out += join(" ", tokens[i]);
  }
  out += "]";
  return out;
}

template <class Policy>
std::string Program<Policy>::describe(Live const& s) const {
  if (log == nullptr) return {};
  std::string out = join("sequence ", s.model.uid, " size ", s.model.size(), " cached ",
                         s.model.cached, " blocks");
  for (int const b : s.model.blocks) out += join(" ", b);
  return out;
}

}  // namespace pagedkv::testing
