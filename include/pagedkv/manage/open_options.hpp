// SPDX-License-Identifier: Apache-2.0
/// \file
/// How a prompt is opened, and what that would take.
#pragma once

#include <cstdint>

#include <pagedkv/version.hpp>

PAGEDKV_NAMESPACE_BEGIN

/// How a prompt is opened.
struct OpenOptions {
  /// Positions that exist after success, in all; those of the prompt have their ids.
  std::int32_t reserve = 0;
  /// The first n prompt positions are computed elsewhere: they exist after success (reserved, ids
  /// set) and are committed by the caller when their bytes have arrived. Start filling them after
  /// the `Batch::build` that lists their blocks as new: what is listed is zeroed.
  /// The transfer ends before the sequence gives these blocks back. Under `Reclaim::deferred` it
  /// may end later: before the `reclaim` of the step that was open then.
  std::int32_t external_tokens = 0;
  bool read = true;      ///< look for cached blocks
  bool publish = true;   ///< commits make full blocks findable
  bool resumed = false;  ///< comes back from a preemption: counted apart
};

/// What opening a prompt would take now.
struct Admission {
  std::int32_t cached_tokens = 0;
  /// New blocks, and idle ones that the hit would revive. `open` finds room if and only if this is
  /// at most `available_blocks()`.
  std::int32_t blocks_needed = 0;
};

PAGEDKV_NAMESPACE_END
