// SPDX-License-Identifier: Apache-2.0
/// \file
/// The scheme that must not be: a block's running maximum whose earlier tokens are not requantized
/// when it grows. They are then read with a scale they weren't stored with.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/quant/vector_codec.hpp>
#include <pagedkv/types.hpp>

namespace quality::testing {

namespace kv = pagedkv;

/// Writes f32 rows as `fp8_e4m3/per_block_head` without requantizing. Tokens come one a call.
inline void write_running_maximum(kv::KvView const& view, std::int32_t layer, kv::KvRows const& k,
                                  kv::KvRows const& v, std::span<kv::Slot const> slots) {
  auto const& tensors = view.layers[static_cast<std::size_t>(layer)];
  auto const block = slots[0] / view.block_tokens;
  auto const offset = slots[0] % view.block_tokens;
  auto const write = [&](kv::KvTensor const& tensor, kv::KvRows const& rows) {
    for (std::int32_t head = 0; head < view.num_kv_heads; ++head) {
      auto const* const x = static_cast<float const*>(rows.data) + head * rows.head_stride;
      float const amax = kv::quant::amax(x, tensor.head_dim);
      float& scale = *tensor.scale(block, offset, head);
      float const own = kv::quant::dynamic_scale(tensor.format.element, amax).value;
      scale = offset == 0 ? own : std::max(scale, own);
      kv::quant::encode_vector(tensor.format.element, {scale, 0.0F}, x, tensor.head_dim,
                               tensor.vector(block, offset, head));
    }
  };
  write(tensors.k, k);
  write(tensors.v, v);
}

}  // namespace quality::testing
