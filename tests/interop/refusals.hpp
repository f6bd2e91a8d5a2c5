// SPDX-License-Identifier: Apache-2.0
/// \file
/// Asks a consumer about pools that exist on paper only, and does what its refusals say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <pagedkv/data/kv_view.hpp>
#include <pagedkv/interop/refusal.hpp>
#include <pagedkv/model/kv_format.hpp>

#include "catch.hpp"

namespace pagedkv::testing {

/// Every element with every granularity it takes.
inline std::vector<KvFormat> every_format() {
  std::vector<KvFormat> formats;
  for (Element const element : all_elements) {
    for (Granularity const g : granularities_of(element)) formats.push_back({element, g});
  }
  return formats;
}

/// What an engine would like its pool to be.
struct PoolWish {
  KvFormat k{Element::f16, Granularity::none};
  KvFormat v{Element::f16, Granularity::none};
  std::int32_t block_tokens = 256;
  std::int32_t dim_k = 64;
  std::int32_t dim_v = 64;
};

/// A view without memory: one layer, contiguous NHD, K and V apart.
class PaperPool {
 public:
  explicit PaperPool(PoolWish const& wish) {
    layer_.k = tensor(wish.k, wish.block_tokens, wish.dim_k, 0x10'0000);
    layer_.v = tensor(wish.v, wish.block_tokens, wish.dim_v, 0x90'0000);
    view_ = {{&layer_, 1}, 16, wish.block_tokens, num_kv_heads};
  }
  PaperPool(PaperPool const&) = delete;  ///< the view points into it
  PaperPool& operator=(PaperPool const&) = delete;

  [[nodiscard]] KvView const& view() const { return view_; }
  [[nodiscard]] KvLayer& layer() { return layer_; }

 private:
  static constexpr std::int32_t num_kv_heads = 2;
  static KvTensor tensor(KvFormat format, std::int32_t block_tokens, std::int32_t dim,
                         std::uintptr_t address) {
    KvTensor t;
    t.format = format;
    t.head_dim = dim;
    t.data = reinterpret_cast<std::byte*>(address);
    if (format.granularity != Granularity::none) {
      t.scales = reinterpret_cast<float*>(address + 0x8'0000);
      t.scale_head_stride = format.granularity == Granularity::per_head ? 1 : 0;
    }
    t.head_stride = dim;
    t.token_stride = std::int64_t{num_kv_heads} * dim;
    t.block_stride = block_tokens * t.token_stride;
    return t;
  }

  KvLayer layer_;
  KvView view_;
};

/// The wish with the refusal's term at its nearest value.
inline PoolWish followed(PoolWish wish, interop::Refusal const& refusal) {
  REQUIRE_FALSE(refusal.nearest.empty());
  auto const format = [&] {
    auto const parsed = parse_kv_format(refusal.nearest);
    REQUIRE(parsed.has_value());
    return *parsed;
  };
  if (refusal.term == "format of K") {
    wish.k = format();
  } else if (refusal.term == "format of V") {
    wish.v = format();
  } else if (refusal.term == "block_tokens") {
    wish.block_tokens = std::stoi(refusal.nearest);
  } else if (refusal.term == "head_dim of K") {
    wish.dim_k = std::stoi(refusal.nearest);
  } else if (refusal.term == "head_dim of V") {
    wish.dim_v = std::stoi(refusal.nearest);
  } else {
    FAIL("a pool can't change its " << refusal.term);
  }
  return wish;
}

/// Asks with the wish, then with what each refusal says, until the consumer takes it.
template <class Ask>
void check_that_refusals_lead_to_what_is_taken(Ask&& ask) {
  for (KvFormat const format : every_format()) {
    for (std::int32_t const block_tokens : {1, 16, 100, 129, 1000}) {
      for (std::int32_t const dim : {4, 60, 64, 100, 144, 300, 1000}) {
        PoolWish wish{format, format, block_tokens, dim, dim == 144 ? 100 : dim};
        int changes = 0;
        for (;; ++changes) {
          PaperPool const pool(wish);
          auto const answer = ask(pool.view());
          if (answer) break;
          INFO(answer.refusal().message);
          REQUIRE(changes < 6);
          CHECK_THAT(answer.refusal().message, contains_text(answer.refusal().term + " is "));
          CHECK_THAT(answer.refusal().message,
                     contains_text("the nearest is " + answer.refusal().nearest));
          wish = followed(wish, answer.refusal());
        }
      }
    }
  }
}

/// Which formats are taken, for K and V alike.
template <class Ask>
std::vector<std::string> taken_formats(Ask&& ask) {
  std::vector<std::string> taken;
  for (KvFormat const format : every_format()) {
    PaperPool const pool({.k = format, .v = format});
    if (ask(pool.view())) taken.push_back(to_string(format));
  }
  return taken;
}

}  // namespace pagedkv::testing
