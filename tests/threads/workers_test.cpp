// SPDX-License-Identifier: Apache-2.0
// Loops and attention on several threads. Says most under the thread sanitizer.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <pagedkv/data/cpu/workers.hpp>

#include "../data/data_support.hpp"
#include "catch.hpp"

namespace kv = pagedkv;
using namespace pagedkv::testing;
using pagedkv::cpu::Workers;

namespace {

/// Sequences of these lengths in scattered blocks, and two query heads for each of two KV heads.
class Scene {
 public:
  static constexpr std::int32_t kv_heads = 2;
  static constexpr std::int32_t q_heads = 4;
  static constexpr std::int32_t dim = 32;
  static constexpr std::int32_t block_tokens = 16;

  Scene(kv::KvFormat format, std::vector<std::int32_t> lengths)
      : lengths_(std::move(lengths)), storage_(geometry(format), num_blocks()) {
    std::mt19937 random(7);
    indices_ = random_blocks(num_blocks(), random);
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      indptr_.push_back(indptr_.back() + kv::blocks_for(lengths_[i], block_tokens));
      auto const table = std::span(indices_).subspan(static_cast<std::size_t>(indptr_[i]));
      Rows k({lengths_[i], kv_heads, dim}, static_cast<std::uint32_t>(i));
      Rows v({lengths_[i], kv_heads, dim}, static_cast<std::uint32_t>(i) + 50);
      kv::cpu::write_kv(storage_.view(), 0, k.rows(), v.rows(),
                        slots_of(table, block_tokens, 0, lengths_[i]));
    }
    std::normal_distribution<float> normal;
    q_.resize(lengths_.size() * q_heads * dim);
    for (float& x : q_) x = normal(random);
  }

  [[nodiscard]] std::vector<float> decode(Workers* workers) const {
    std::vector<float> out(q_.size());
    kv::cpu::decode_attention(storage_.view(), 0, {indptr_, indices_, lengths_, {}},
                              {q_.data(), out.data(), q_heads, q_heads * dim, q_heads * dim},
                              {.softmax_scale = 0.2F, .workers = workers});
    return out;
  }

 private:
  static kv::Geometry geometry(kv::KvFormat format) {
    return {.num_layers = 1,
            .num_kv_heads = kv_heads,
            .head_dim_k = dim,
            .head_dim_v = dim,
            .block_tokens = block_tokens,
            .format = format};
  }
  [[nodiscard]] std::int32_t num_blocks() const {
    std::int32_t n = 0;
    for (auto const length : lengths_) n += kv::blocks_for(length, block_tokens);
    return n;
  }

  std::vector<std::int32_t> lengths_;
  kv::KvStorage storage_;
  std::vector<std::int32_t> indices_;
  std::vector<std::int32_t> indptr_{0};
  std::vector<float> q_;
};

}  // namespace

TEST_CASE("a loop returns when its last body has, and what that wrote is seen") {
  Workers workers(2);
  auto const caller = std::this_thread::get_id();
  for (int round = 0; round < 5; ++round) {
    std::vector<int> values(2);
    std::atomic<int> begun = 0;
    workers.parallel_for(2, [&](std::int64_t i) {
      // A body for each thread, and the caller's ends first.
      ++begun;
      while (begun < 2) std::this_thread::yield();
      if (std::this_thread::get_id() != caller) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      values[static_cast<std::size_t>(i)] = round + 1;
    });
    REQUIRE(values == std::vector<int>(2, round + 1));
  }
}

TEST_CASE("what one loop wrote, the next one's threads see") {
  Workers workers(3);
  std::vector<std::int64_t> values(64, 1);
  std::vector<std::int64_t> sums(64);
  for (int round = 0; round < 100; ++round) {
    workers.parallel_for(64, [&](std::int64_t i) {
      auto const at = static_cast<std::size_t>(i);
      sums[at] = values[at] + values[(at + 1) % 64];
    });
    workers.parallel_for(64, [&](std::int64_t i) {
      auto const at = static_cast<std::size_t>(i);
      values[at] = sums[at] % 1000 + sums[(at + 63) % 64] % 2;
    });
  }
  std::vector<std::int64_t> alone(64, 1);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::int64_t> s(64);
    for (std::size_t i = 0; i < 64; ++i) s[i] = alone[i] + alone[(i + 1) % 64];
    for (std::size_t i = 0; i < 64; ++i) alone[i] = s[i] % 1000 + s[(i + 63) % 64] % 2;
  }
  CHECK(values == alone);
}

TEST_CASE("attention on several threads is attention on one, however it is split") {
  for (auto const format : {kv::KvFormat{kv::Element::f32, kv::Granularity::none},
                            kv::KvFormat{kv::Element::fp8_e4m3, kv::Granularity::per_token_head}}) {
    // By heads; by the tiles of a long context, in one round and in several; by units.
    std::vector<std::int32_t> const many(16, 40);
    for (auto const& [lengths, scratch] :
         {std::pair(many, std::size_t{1} << 16),
          std::pair(std::vector{1500, 0, 300}, std::size_t{1} << 18),
          std::pair(std::vector{1500, 700}, std::size_t{20'000}),
          std::pair(std::vector{900, 800}, std::size_t{1})}) {
      Scene const scene(format, lengths);
      auto const alone = scene.decode(nullptr);
      Workers workers(3, scratch);
      for (int round = 0; round < 3; ++round) {
        INFO(to_string(format) << ", " << lengths.size() << " sequences, scratch " << scratch);
        CHECK(same_floats(scene.decode(&workers), alone));
      }
    }
  }
}
