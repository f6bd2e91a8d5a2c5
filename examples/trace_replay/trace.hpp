// SPDX-License-Identifier: Apache-2.0
/// \file
/// A request trace in memory, whatever format it came from. Requests are compact: a prompt of
/// 100,000 tokens that was recorded as block ids takes a few runs of consecutive ids, and its
/// tokens are written out only when it is its turn.
///
/// Token at offset o of block id x is x * trace_block_tokens + o, so equal ids are equal tokens and
/// any smaller block size cuts an id into sub-ids by itself. Tokens nobody recorded (generated
/// ones, tails without an id, traces that hold lengths alone) are unique: they count down from -1
/// and meet no recorded token, which are never negative.
#pragma once

#include <cstddef>
#include <cstdint>
#include <pagedkv/types.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace replay {

enum class Format : std::uint8_t { mooncake, claude_code, token_ids, agent_text, azure };

[[nodiscard]] char const* to_string(Format format) noexcept;

/// `count` consecutive block ids from `first` on.
struct IdRun {
  std::int32_t first = 0;
  std::int32_t count = 0;
};

/// `count` entries of the trace's store (runs, tokens or bytes) from `first` on.
struct Slice {
  std::size_t first = 0;
  std::int32_t count = 0;
};

struct Request {
  std::int64_t arrival_ns = 0;
  std::int32_t session = 0;  ///< 0 where the format has no sessions
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;  ///< may be 0: the prompt alone is computed
  std::int32_t cancel_after = -1;  ///< generated tokens after which the client leaves; -1: it stays
  Slice prompt;                    ///< what was recorded; the rest of the prompt is unique
  Slice output;                    ///< empty where the format doesn't record outputs
};

/// Hands out tokens that no prompt holds. One per replay.
class UniqueTokens {
 public:
  /// Throws when the 2^31 - 1 of them are used up.
  [[nodiscard]] pagedkv::TokenId next();

 private:
  pagedkv::TokenId last_ = 0;
};

/// Requests in arrival order and what their tokens are made from.
struct Trace {
  std::string path;
  Format format = Format::mooncake;
  std::int32_t block_tokens = 0;  ///< tokens an id of the trace stands for; 0: it has no block ids
  std::vector<Request> requests;
  std::vector<IdRun> runs;
  std::vector<pagedkv::TokenId> tokens;
  std::string bytes;

  /// False where nothing can be said about shared prefixes: every token is unique.
  [[nodiscard]] bool knows_sharing() const noexcept { return format != Format::azure; }

  /// Replaces `out` by the prompt's tokens.
  void write_prompt(Request const& request, UniqueTokens& unique,
                    std::vector<pagedkv::TokenId>& out) const;
  /// The output token number `index`: the recorded one, else a unique one.
  [[nodiscard]] pagedkv::TokenId output_token(Request const& request, std::int32_t index,
                                              UniqueTokens& unique) const;

  /// Tokens of the longest request, prompt and output together.
  [[nodiscard]] std::int32_t longest_request() const noexcept;
  [[nodiscard]] std::int32_t longest_prompt() const noexcept;
  /// Full blocks of all prompts.
  [[nodiscard]] std::int64_t prompt_blocks(std::int32_t block_size) const noexcept;
  /// Upper bound of different full prompt blocks, prefix included: with so many (and the last
  /// prompt's rest) no prompt ever evicts. O(all block ids); tight where prompts are block ids.
  [[nodiscard]] std::int64_t distinct_prompt_blocks(std::int32_t block_size) const;
};

/// Arrival times for sessions that were recorded without: `users` users take the sessions in file
/// order, each the next one at the time of its last one's last request. On entry a request's
/// `arrival_ns` counts from its session's start and sessions lie one after another; on return it
/// counts from the replay's start and requests are in arrival order, ties by session number.
void arrange_closed_loop(Trace& trace, std::int32_t users);

}  // namespace replay
