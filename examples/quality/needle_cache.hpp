// SPDX-License-Identifier: Apache-2.0
/// \file
/// A needle's context in a paged cache of some format, and the question where the needle is.
///
/// The way is a serving engine's: `write_kv` token by token into blocks in random order, then
/// `decode_attention` through the block table.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <pagedkv/data/kv_storage.hpp>
#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/model/geometry.hpp>
#include <pagedkv/model/kv_format.hpp>
#include <pagedkv/types.hpp>

#include "needle_context.hpp"

namespace quality {

/// `cpu::write_kv` or something to compare it with.
using WriteKv =
    std::function<void(pagedkv::KvView const& view, std::int32_t layer, pagedkv::KvRows const& k,
                       pagedkv::KvRows const& v, std::span<pagedkv::Slot const> slots)>;

/// One layer, blocks of 16 tokens.
[[nodiscard]] pagedkv::Geometry needle_geometry(pagedkv::KvFormat format);

class NeedleCache {
 public:
  /// `context` must outlive it. `scales`: of one layer, for static formats; else empty.
  NeedleCache(NeedleContext const& context, pagedkv::KvFormat format,
              std::span<pagedkv::StaticScales const> scales, WriteKv write);

  /// Puts one of the context's needles in its place, asks, and puts back what was there.
  ///
  /// Found: in every head the output is nearer (Euclid) to the needle's value than to that of any
  /// other token. That takes about half of the attention: an output of w * needle + the rest's
  /// mean, which is near 0, is as far from the needle as from 0 at w = 1/2.
  [[nodiscard]] bool finds(Needle const& needle);

 private:
  void write(std::int32_t position, float const* k, float const* v);
  void write_block_of(std::int32_t position, Needle const* needle);
  [[nodiscard]] std::vector<float> ask() const;
  [[nodiscard]] bool is_needle(float const* out, std::size_t head, Needle const& needle) const;

  NeedleContext const& context_;
  WriteKv write_;
  pagedkv::KvStorage storage_;
  std::vector<std::int32_t> table_;
  std::vector<float> v_squares_;  // [length, needle_heads]
};

}  // namespace quality
