// SPDX-License-Identifier: Apache-2.0
/// \file
/// Names and default policies, for headers that only pass things on.
#pragma once

#include <oracle/shared.hpp>

PAGEDKV_ORACLE_BEGIN

struct Xxh3BlockHash;
class LruEviction;

/// How blocks are hashed and which idle block goes first. Write your own struct with these two
/// names to change either.
struct DefaultPolicy {
  using Hash = Xxh3BlockHash;
  using Eviction = LruEviction;
};

template <class Policy>
class BasicKvCache;
template <class Policy>
class BasicSequence;
template <class Policy>
class BasicPin;
template <class Policy>
class BasicBatch;

using KvCache = BasicKvCache<DefaultPolicy>;
using Sequence = BasicSequence<DefaultPolicy>;
using Pin = BasicPin<DefaultPolicy>;
using Batch = BasicBatch<DefaultPolicy>;

namespace detail {
template <class Policy>
class CacheCore;
}  // namespace detail

PAGEDKV_ORACLE_END
