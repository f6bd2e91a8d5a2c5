// SPDX-License-Identifier: Apache-2.0
/// \file
/// Lays the tensors of a pool out in one allocation.
#include <pagedkv/data/kv_storage.hpp>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cmath>
#include <cstring>
#include <string>

PAGEDKV_NAMESPACE_BEGIN
namespace {

constexpr std::int64_t line = 64;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t unit) noexcept {
  return (n + unit - 1) / unit * unit;
}

/// Sizes of K, or V, of one layer.
struct TensorSize {
  std::int64_t vector_elements = 0;  ///< distance between neighbouring vectors
  std::int64_t vector_bytes = 0;
  std::int64_t data_bytes = 0;     ///< of one block
  std::int64_t scale_floats = 0;   ///< of one block, dynamic
  std::int64_t static_floats = 0;  ///< of the layer
};

TensorSize size_of(KvFormat format, std::int32_t dim, Geometry const& g) noexcept {
  if (dim == 0) return {};
  std::int64_t const heads = g.num_kv_heads;
  std::int64_t const vector_bytes = bytes_per_vector(format.element, dim);
  return {
      vector_bytes * 8 / bits_per_element(format.element), vector_bytes,
      heads * g.block_tokens * vector_bytes,
      heads *
          (g.block_tokens * scale_bytes_per_vector(format) + scale_bytes_per_block_head(format)) /
          bytes_per_scale,
      static_scale_bytes(format, g.num_kv_heads) / bytes_per_scale};
}

/// Where the parts of one tensor begin, in bytes from the start of the memory.
struct Place {
  std::int64_t data = 0;
  std::int64_t scales = 0;
  std::int64_t statics = 0;
};

/// Deals out memory: tensors in the order K of layer 0, V of layer 0, K of layer 1 and so on.
struct Plan {
  std::vector<TensorSize> sizes;
  std::vector<Place> places;
  std::int64_t block_bytes = 0;
  std::int64_t total = 0;

  void layer_major(std::int64_t num_blocks) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      places[i].data = total;
      places[i].scales = round_up(total + num_blocks * sizes[i].data_bytes, line);
      total =
          round_up(places[i].scales + num_blocks * sizes[i].scale_floats * bytes_per_scale, line);
    }
  }
  void block_major(std::int64_t num_blocks) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      places[i].scales = at;
      at += sizes[i].scale_floats * bytes_per_scale;
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      places[i].data = at;
      at = round_up(at + sizes[i].data_bytes, bytes_per_scale);
    }
    block_bytes = round_up(at, line);
    total = num_blocks * block_bytes;
  }
  void statics() {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      places[i].statics = total;
      total += sizes[i].static_floats * bytes_per_scale;
    }
  }
};

KvTensor tensor_of(KvFormat format, std::int32_t dim, Geometry const& g, KvLayout layout,
                   std::int64_t block_bytes, TensorSize const& size, Place const& place,
                   std::byte* memory) {
  KvTensor t;
  t.format = format;
  t.head_dim = dim;
  if (dim == 0) return t;
  bool const nhd = layout.block == BlockOrder::nhd;
  std::int64_t const heads = g.num_kv_heads;
  t.data = memory + place.data;
  t.token_stride = nhd ? heads * size.vector_elements : size.vector_elements;
  t.head_stride = nhd ? size.vector_elements : g.block_tokens * size.vector_elements;
  std::int64_t const pitch = block_bytes != 0 ? block_bytes : size.data_bytes;
  t.block_stride = pitch * 8 / bits_per_element(format.element);
  if (format.granularity == Granularity::none) return t;
  if (size.static_floats > 0) {
    t.scales = reinterpret_cast<float*>(memory + place.statics);
    t.scale_head_stride = format.granularity == Granularity::per_head ? 1 : 0;
    return t;
  }
  t.scales = reinterpret_cast<float*>(memory + place.scales);
  t.scale_block_stride = block_bytes != 0 ? block_bytes / bytes_per_scale : size.scale_floats;
  std::int64_t const entry = bytes_per_scale_entry(format.element) / bytes_per_scale;
  bool const by_token = format.granularity == Granularity::per_token_head;
  t.scale_token_stride = !by_token ? 0 : nhd ? heads * entry : entry;
  t.scale_head_stride = by_token && !nhd ? g.block_tokens * entry : entry;
  return t;
}

/// Blocks are read in no order: with small pages nearly each one costs a look into the page tables.
/// A hint, and no more: it may be refused.
void ask_for_huge_pages(std::byte* memory, std::int64_t bytes) noexcept {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::int64_t huge = std::int64_t{2} << 20;
  auto const address = reinterpret_cast<std::intptr_t>(memory);
  std::int64_t const skipped = round_up(address, huge) - address;
  std::int64_t const usable = (bytes - skipped) / huge * huge;
  if (usable > 0) ::madvise(memory + skipped, static_cast<std::size_t>(usable), MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

void copy_static(KvTensor const& tensor, std::int64_t count, std::vector<float> const& given,
                 std::int32_t layer, char const* which) {
  if (static_cast<std::int64_t>(given.size()) != count) {
    raise("KvStorage: " + std::string(which) + " of layer " + std::to_string(layer) + " is " +
          to_string(tensor.format) + " and takes " + std::to_string(count) + " static scales; " +
          std::to_string(given.size()) + " are given");
  }
  for (std::int64_t i = 0; i < count; ++i) {
    float const scale = given[static_cast<std::size_t>(i)];
    if (!std::isfinite(scale) || scale <= 0.0F) {
      raise("KvStorage: static scale " + std::to_string(i) + " of " + which + " of layer " +
            std::to_string(layer) + " is " + std::to_string(scale) +
            "; it must be finite and greater than 0");
    }
    tensor.scales[i] = scale;
  }
}

void require_storable(Geometry const& g, std::int32_t num_blocks) {
  if (auto const problem = geometry_error(g); !problem.empty()) raise("KvStorage: " + problem);
  if (num_blocks < 1) {
    raise("KvStorage: num_blocks is " + std::to_string(num_blocks) + "; it must be at least 1");
  }
  std::int32_t const dim = g.head_dim_k > g.head_dim_v ? g.head_dim_k : g.head_dim_v;
  if (dim > max_head_dim) {
    raise("KvStorage: a head of " + std::to_string(dim) + " elements; at most " +
          std::to_string(max_head_dim) + " are supported");
  }
  // Alignment adds less than as much again.
  if (g.bytes_per_block() > (std::int64_t{1} << 61) / num_blocks) {
    raise("KvStorage: " + std::to_string(num_blocks) + " blocks of " +
          std::to_string(g.bytes_per_block()) + " bytes are more than 2^61 bytes");
  }
}

}  // namespace

KvStorage::KvStorage(Geometry const& geometry, std::int32_t num_blocks, KvLayout layout,
                     std::span<StaticScales const> static_scales)
    : layout_(layout),
      num_blocks_(num_blocks),
      block_tokens_(geometry.block_tokens),
      num_kv_heads_(geometry.num_kv_heads) {
  require_storable(geometry, num_blocks);
  auto const num_layers = static_cast<std::size_t>(geometry.num_layers);
  if (!static_scales.empty() && static_scales.size() != num_layers) {
    raise("KvStorage: static scales of " + std::to_string(static_scales.size()) +
          " layers are given; the geometry has " + std::to_string(geometry.num_layers));
  }

  Plan plan;
  for (std::int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    auto const format = geometry.format_of(layer);
    plan.sizes.push_back(size_of(format.k, geometry.head_dim_k, geometry));
    plan.sizes.push_back(size_of(format.v, geometry.head_dim_v, geometry));
  }
  plan.places.resize(plan.sizes.size());
  if (layout.pool == PoolOrder::layer_major) {
    plan.layer_major(num_blocks);
  } else {
    plan.block_major(num_blocks);
  }
  std::int64_t const bytes_of_blocks = plan.total;
  plan.statics();
  memory_ = detail::LazyArray<std::byte>(static_cast<std::size_t>(plan.total));
  ask_for_huge_pages(memory_.data(), plan.total);
#if PAGEDKV_ASSERT_LEVEL >= 2
  std::memset(memory_.data(), 0xFF, static_cast<std::size_t>(bytes_of_blocks));
#else
  (void)bytes_of_blocks;
#endif
  block_bytes_ = plan.block_bytes;
  bytes_ = num_blocks * geometry.bytes_per_block() + geometry.static_scale_bytes();

  layers_.reserve(num_layers);
  StaticScales const none;
  for (std::size_t i = 0; i < num_layers; ++i) {
    auto const layer = static_cast<std::int32_t>(i);
    auto const format = geometry.format_of(layer);
    auto const tensor = [&](KvFormat of, std::int32_t dim, std::size_t at) {
      return tensor_of(of, dim, geometry, layout, block_bytes_, plan.sizes[at], plan.places[at],
                       memory_.data());
    };
    layers_.push_back({tensor(format.k, geometry.head_dim_k, 2 * i),
                       tensor(format.v, geometry.head_dim_v, 2 * i + 1)});
    StaticScales const& given = static_scales.empty() ? none : static_scales[i];
    copy_static(layers_.back().k, plan.sizes[2 * i].static_floats, given.k, layer, "K");
    copy_static(layers_.back().v, plan.sizes[2 * i + 1].static_floats, given.v, layer, "V");
  }
}

PAGEDKV_NAMESPACE_END
