// SPDX-License-Identifier: Apache-2.0
/// \file
/// What can be wrong with a view that an engine filled in.
#include <pagedkv/data/kv_view.hpp>

#include <algorithm>
#include <iterator>
#include <string>

PAGEDKV_NAMESPACE_BEGIN
namespace {

std::string at_least_one(char const* name, std::int64_t value) {
  return std::string(name) + " is " + std::to_string(value) + "; it must be at least 1";
}

/// Who shares a scale has one of its own by no stride.
std::string scale_stride_error(KvTensor const& t) {
  Granularity const reach = t.format.granularity;
  auto const error = [](char const* stride, std::int64_t value, char const* sharing) {
    return std::string(stride) + " is " + std::to_string(value) + "; it must be 0 where " + sharing;
  };
  bool const is_static = reach == Granularity::per_tensor || reach == Granularity::per_head;
  if (is_static && t.scale_block_stride != 0) {
    return error("scale_block_stride", t.scale_block_stride, "blocks share a scale");
  }
  if ((is_static || reach == Granularity::per_block_head) && t.scale_token_stride != 0) {
    return error("scale_token_stride", t.scale_token_stride, "a block's tokens share a scale");
  }
  if (reach == Granularity::per_tensor && t.scale_head_stride != 0) {
    return error("scale_head_stride", t.scale_head_stride, "heads share a scale");
  }
  return {};
}

/// Blocks, tokens and heads, from the smallest stride up: each must step over all that is within.
std::string overlap_error(KvView const& view, KvTensor const& t) {
  struct Dimension {
    char const* stride_name;
    std::int64_t stride;
    std::int64_t count;
  };
  Dimension dimensions[] = {{"block_stride", t.block_stride, view.num_blocks},
                            {"token_stride", t.token_stride, view.block_tokens},
                            {"head_stride", t.head_stride, view.num_kv_heads}};
  std::sort(std::begin(dimensions), std::end(dimensions),
            [](Dimension const& a, Dimension const& b) { return a.stride < b.stride; });
  std::int64_t within =
      bytes_per_vector(t.format.element, t.head_dim) * 8 / bits_per_element(t.format.element);
  for (auto const& [name, stride, count] : dimensions) {
    if (count == 1) continue;
    if (stride < within) {
      return std::string(name) + " is " + std::to_string(stride) + "; it must be at least " +
             std::to_string(within) + " elements, or vectors overlap";
    }
    within += stride * (count - 1);
  }
  return {};
}

std::string tensor_error(KvView const& view, KvTensor const& t, bool may_be_absent) {
  if (t.head_dim == 0 && may_be_absent) return {};
  if (t.head_dim < 1 || t.head_dim > max_head_dim) {
    return "head_dim is " + std::to_string(t.head_dim) + "; it must be 1 to " +
           std::to_string(max_head_dim) + (may_be_absent ? ", or 0 where there is no V" : "");
  }
  if (auto problem = kv_format_error(t.format); !problem.empty()) return problem;
  if (t.data == nullptr) return "data is null";
  bool const is_scaled = t.format.granularity != Granularity::none;
  if (is_scaled && t.scales == nullptr)
    return "scales is null; " + to_string(t.format) + " has some";
  if (!is_scaled && t.scales != nullptr) {
    return "scales is set; " + to_string(t.format) + " has none";
  }
  if (reinterpret_cast<std::uintptr_t>(t.scales) % alignof(float) != 0) {
    return "scales isn't aligned to 4 bytes";
  }
  bool const is_odd = (t.block_stride % 2 | t.token_stride % 2 | t.head_stride % 2) != 0;
  if (t.format.element == Element::int4 && is_odd) return "an odd stride of int4 elements";
  if (auto problem = overlap_error(view, t); !problem.empty()) return problem;
  return scale_stride_error(t);
}

}  // namespace

std::string kv_view_error(KvView const& view) {
  if (view.layers.empty()) return "a view without layers";
  if (view.num_blocks < 1) return at_least_one("num_blocks", view.num_blocks);
  if (view.block_tokens < 1) return at_least_one("block_tokens", view.block_tokens);
  if (view.num_kv_heads < 1) return at_least_one("num_kv_heads", view.num_kv_heads);
  for (std::size_t i = 0; i < view.layers.size(); ++i) {
    auto const name = [&](char const* which) {
      return std::string(which) + " of layer " + std::to_string(i) + ": ";
    };
    KvLayer const& layer = view.layers[i];
    if (auto const p = tensor_error(view, layer.k, false); !p.empty()) return name("K") + p;
    if (auto const p = tensor_error(view, layer.v, true); !p.empty()) return name("V") + p;
  }
  return {};
}

PAGEDKV_NAMESPACE_END
