// SPDX-License-Identifier: Apache-2.0
/// \file
/// Host memory for a pool.
#include <pagedkv/data/kv_storage.hpp>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstring>

PAGEDKV_NAMESPACE_BEGIN
namespace {

/// Blocks are read in no order: with small pages nearly each one costs a look into the page tables.
/// A hint, and no more: it may be refused.
void ask_for_huge_pages(std::byte* memory, std::int64_t bytes) noexcept {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::int64_t huge = std::int64_t{2} << 20;
  auto const address = reinterpret_cast<std::intptr_t>(memory);
  std::int64_t const skipped = detail::round_up(address, huge) - address;
  std::int64_t const usable = (bytes - skipped) / huge * huge;
  if (usable > 0) ::madvise(memory + skipped, static_cast<std::size_t>(usable), MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

}  // namespace

KvStorage::KvStorage(Geometry const& geometry, std::int32_t num_blocks, KvLayout layout,
                     std::span<StaticScales const> static_scales)
    : placement_(geometry, num_blocks, layout) {
  auto const statics = placement_.static_scales(static_scales);
  memory_ = detail::LazyArray<std::byte>(static_cast<std::size_t>(placement_.allocated_bytes()),
                                         "the blocks of a pool (num_blocks)");
  ask_for_huge_pages(memory_.data(), placement_.allocated_bytes());
#if PAGEDKV_ASSERT_LEVEL >= 2
  std::memset(memory_.data(), 0xFF, static_cast<std::size_t>(placement_.bytes_of_blocks()));
#endif
  if (!statics.empty()) {
    std::memcpy(memory_.data() + placement_.bytes_of_blocks(), statics.data(),
                statics.size() * sizeof(float));
  }
  layers_ = placement_.layers(memory_.data());
}

PAGEDKV_NAMESPACE_END
