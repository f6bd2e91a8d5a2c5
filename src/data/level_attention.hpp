// SPDX-License-Identifier: Apache-2.0
/// \file
/// One tile of attention in the order of attention_order.hpp. Included by kernels_level.hpp only.
///
/// A tile is read twice, K then V, chunk by chunk: at most `chunk_tokens` neighbours of one block.
/// f32 is read in place. A chunk of another element is converted once for all lanes, or, for a
/// single lane, in registers where it is used. 16 tokens' partial sums are folded together.

PAGEDKV_NAMESPACE_BEGIN
namespace {

/// 16 floats. aligned(4): loads and stores may be anywhere a float may.
typedef float Floats __attribute__((vector_size(64)));
typedef float FloatsAnywhere __attribute__((vector_size(64), aligned(4), may_alias));

constexpr std::int64_t chunk_tokens = 16;
constexpr std::int64_t chunk_floats = 8192;
constexpr std::int64_t lanes_of_floats = 16;

[[gnu::always_inline]] inline std::int64_t padded(std::int64_t dim) {
  return (dim + lanes_of_floats - 1) / lanes_of_floats * lanes_of_floats;
}
[[gnu::always_inline]] inline Floats at(float const* p) {
  return *reinterpret_cast<FloatsAnywhere const*>(p);
}

/// What is to be read soon: vectors of as many neighbouring tokens, with scales of their own. Asked
/// for one by one, between the work on others: a burst of prefetches waits for the memory like
/// loads do.
struct Ahead {
  std::byte const* bytes;  ///< null: nothing
  std::int64_t stride;
  std::int64_t vector_bytes;
  float const* scale;  ///< null: shared ones, which stay in the cache
  std::int64_t scale_stride;

  [[gnu::always_inline]] inline void fetch(std::int64_t token) const {
    if (bytes == nullptr) return;
    for (std::int64_t b = 0; b < vector_bytes; b += 64) {
      __builtin_prefetch(bytes + token * stride + b, 0, 2);
    }
    if (scale != nullptr) __builtin_prefetch(scale + token * scale_stride, 0, 2);
  }
};

/// Neighbouring tokens of one block, as f32.
struct Chunk {
  float const* x;
  std::int64_t stride;  ///< floats
  Ahead ahead;          ///< for who goes through the tokens first

  struct Token {
    float const* x;
    [[gnu::always_inline]] inline Floats at(std::int64_t d) const {
      return *reinterpret_cast<FloatsAnywhere const*>(x + d);
    }
  };
  [[gnu::always_inline]] inline Token token(std::int64_t t) const { return {x + t * stride}; }
};

/// The same as they are stored.
template <Element element>
struct StoredChunk {
  std::byte const* bytes;
  std::int64_t stride;  ///< bytes
  float const* scale;
  std::int64_t scale_stride;
  Ahead ahead;

  struct Token {
    std::byte const* bytes;
    Floats factor;
    [[gnu::always_inline]] inline Floats at(std::int64_t d) const {
      auto const x = reinterpret_cast<Floats>(Numbers16<element>::at(bytes + d * code_bytes));
      if constexpr (quant::is_unscaled(element)) return x;
      return x * factor;
    }
  };
  [[gnu::always_inline]] inline Token token(std::int64_t t) const {
    Floats factor = {};
    if constexpr (!quant::is_unscaled(element)) {
      factor = factor + scale[t * scale_stride] * Numbers16<element>::unit;
    }
    return {bytes + t * stride, factor};
  }
  /// Whether the tokens' scales times the unit are floats.
  [[gnu::always_inline]] inline bool is_exact(std::int64_t count) const {
    if constexpr (quant::is_unscaled(element)) return true;
    bool exact = true;
    for (std::int64_t t = 0; t < (scale_stride == 0 ? 1 : count); ++t) {
      exact &= quant::detail::is_finite(scale[t * scale_stride] * Numbers16<element>::unit);
    }
    return exact;
  }

 private:
  static constexpr std::int64_t code_bytes = sizeof(typename Codec<element>::Code);
};

/// For sums, where all NaN are alike.
template <Element element>
[[gnu::always_inline]] inline void decode_for_sums(std::byte const* in, std::int64_t dim,
                                                   AffineScale scale, float* x) {
  std::int64_t i = 0;
#if defined(__F16C__)
  if constexpr (element == Element::f16) {
    for (; i + 8 <= dim; i += 8) {
      __m128i const halves = _mm_loadu_si128(reinterpret_cast<__m128i const*>(in + 2 * i));
      _mm256_storeu_ps(x + i, _mm256_cvtph_ps(halves));
    }
    if (i == dim) return;
    in += 2 * i;
  }
#endif
  Decode<element, Element::f32>::run(in, dim - i, scale, reinterpret_cast<std::byte*>(x + i));
}

template <Element element>
[[gnu::noinline]] void decode_chunk(HeadTensor const& t, std::byte const* bytes, float const* scale,
                                    std::int64_t count, Ahead ahead, float* out) {
  std::int64_t const width = padded(t.dim);
  for (std::int64_t i = 0; i < count; ++i) {
    ahead.fetch(i);
    AffineScale s{1.0F, 0.0F};
    if constexpr (!quant::is_unscaled(element)) s.scale = scale[i * t.scale_token_stride];
    if constexpr (quant::has_zero(element)) s.zero = scale[i * t.scale_token_stride + 1];
    float* const row = out + i * width;
    decode_for_sums<element>(bytes + i * t.token_stride, t.dim, s, row);
    for (std::int64_t d = t.dim; d < width; ++d) row[d] = 0.0F;
  }
}

/// A chunk's stored bytes and where its scales begin.
struct Place {
  std::byte const* bytes;
  float const* scale;
};
[[gnu::always_inline]] inline Place place_of(HeadTensor const& t, std::int64_t block,
                                             std::int64_t offset) {
  Place p = {t.data + block * t.block_stride + offset * t.token_stride, nullptr};
  if (t.scales != nullptr) {
    p.scale = t.scales + block * t.scale_block_stride + offset * t.scale_token_stride;
  }
  return p;
}

/// Calls use(chunk) with `count` tokens at `place`: in place, in registers, or converted.
template <Element element, class Use>
[[gnu::always_inline]] inline void use_chunk(HeadTensor const& t, Place place, std::int64_t count,
                                             Ahead ahead, bool in_registers, float* buffer,
                                             Use use) {
  bool const is_whole = t.dim % lanes_of_floats == 0;
  if constexpr (element == Element::f32) {
    bool const is_aligned = t.token_stride % 4 == 0 &&
                            reinterpret_cast<std::uintptr_t>(place.bytes) % alignof(float) == 0;
    if (is_whole && is_aligned) {
      return use(Chunk{reinterpret_cast<float const*>(place.bytes), t.token_stride / 4, ahead});
    }
  } else if constexpr (Numbers16<element>::exists) {
    StoredChunk<element> const chunk{place.bytes, t.token_stride, place.scale, t.scale_token_stride,
                                     ahead};
    if (in_registers && is_whole && chunk.is_exact(count)) return use(chunk);
  }
  decode_chunk<element>(t, place.bytes, place.scale, count, ahead, buffer);
  use(Chunk{buffer, padded(t.dim), {}});
}

// ---- sums ---------------------------------------------------------------------------------------

#if defined(__AVX512F__)
/// Element i of a and b added to element i + `half`, for two vectors at once; see fold16.
[[gnu::always_inline]] inline __m512 fold_8(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
}
[[gnu::always_inline]] inline __m512 fold_4(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}
[[gnu::always_inline]] inline __m512 fold_2(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
}
[[gnu::always_inline]] inline __m512 fold_1(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD));
}
/// 16 vectors of partial sums to 16 sums, all in the order of `folded`.
[[gnu::always_inline]] inline void fold16(Floats const* v, float* out) {
  auto const p = [&](int i) { return reinterpret_cast<__m512 const&>(v[i]); };
  __m512 w[8];
  for (int i = 0; i < 8; ++i) w[i] = fold_8(p(2 * i), p(2 * i + 1));
  __m512 x[4];
  for (int i = 0; i < 4; ++i) x[i] = fold_4(w[2 * i], w[2 * i + 1]);
  __m512 const y[2] = {fold_2(x[0], x[1]), fold_2(x[2], x[3])};
  // Tokens 0, 4, 8, 12, then 1, 5, 9, 13 and so on.
  __m512 const z = fold_1(y[0], y[1]);
  __m512i const order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  _mm512_storeu_ps(out, _mm512_permutexvar_ps(order, z));
}
#else
[[gnu::always_inline]] inline void fold16(Floats const* v, float* out) {
  for (int t = 0; t < 16; ++t) {
    float sums[16];
    __builtin_memcpy(sums, &v[t], sizeof sums);
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    out[t] = sums[0];
  }
}
#endif

[[gnu::always_inline]] inline float folded(Floats v) {
  float sums[16];
  __builtin_memcpy(sums, &v, sizeof sums);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

/// scores[t] = rn(q . k * softmax_scale) for tokens first .. end - 1 of the chunk.
template <class AnyChunk>
[[gnu::always_inline]] inline void scores_of(AnyChunk const& chunk, float const* q,
                                             std::int64_t width, std::int64_t first,
                                             std::int64_t end, float scale, float* scores) {
  Floats sums[chunk_tokens];
  for (std::int64_t t = 0; t < first; ++t) sums[t] = Floats{};
  for (std::int64_t t = end; t < chunk_tokens; ++t) sums[t] = Floats{};
  for (std::int64_t t = first; t < end; ++t) {
    chunk.ahead.fetch(t);
    auto const k = chunk.token(t);
    Floats sum = {};
    for (std::int64_t d = 0; d < width; d += lanes_of_floats) sum += at(q + d) * k.at(d);
    sums[t] = sum;
  }
  float dots[chunk_tokens];
  fold16(sums, dots);
  for (std::int64_t t = first; t < end; ++t) scores[t] = dots[t] * scale;
}

/// acc[d] += weight * v[d], `count` vectors of floats from `from` on, token after token.
template <int count, class AnyChunk>
[[gnu::always_inline]] inline void accumulate(AnyChunk const& chunk, std::int64_t from,
                                              float const* weights, std::int64_t first,
                                              std::int64_t end, float* acc) {
  Floats sums[count];
  for (int i = 0; i < count; ++i) sums[i] = at(acc + from + i * lanes_of_floats);
  for (std::int64_t t = first; t < end; ++t) {
    if (from == 0) chunk.ahead.fetch(t);
    auto const v = chunk.token(t);
    float const weight = weights[t];
    for (int i = 0; i < count; ++i) sums[i] += weight * v.at(from + i * lanes_of_floats);
  }
  for (int i = 0; i < count; ++i) {
    *reinterpret_cast<FloatsAnywhere*>(acc + from + i * lanes_of_floats) = sums[i];
  }
}
template <class AnyChunk>
[[gnu::always_inline]] inline void accumulate(AnyChunk const& chunk, float const* weights,
                                              std::int64_t first, std::int64_t end,
                                              std::int64_t width, float* acc) {
  std::int64_t d = 0;
  for (; d + 8 * lanes_of_floats <= width; d += 8 * lanes_of_floats) {
    accumulate<8>(chunk, d, weights, first, end, acc);
  }
  for (; d + 4 * lanes_of_floats <= width; d += 4 * lanes_of_floats) {
    accumulate<4>(chunk, d, weights, first, end, acc);
  }
  for (; d < width; d += lanes_of_floats) accumulate<1>(chunk, d, weights, first, end, acc);
}

/// Scores of the tile's positions begin .. end - 1 become weights. [tile_tokens], the rest 0.
[[gnu::always_inline]] inline void weigh(float* w, std::int64_t begin, std::int64_t end, float& max,
                                         float& sum) {
  constexpr float lowest = -__builtin_inff();
  for (std::int64_t i = 0; i < begin; ++i) w[i] = lowest;
  for (std::int64_t i = end; i < tile_tokens; ++i) w[i] = lowest;
  Floats largest = at(w);
  for (std::int64_t i = lanes_of_floats; i < tile_tokens; i += lanes_of_floats) {
    Floats const x = at(w + i);
    largest = x > largest ? x : largest;
  }
  max = lowest;
  for (int i = 0; i < 16; ++i) max = largest[i] > max ? largest[i] : max;
  for (std::int64_t i = 0; i < tile_tokens; i += lanes_of_floats) {
    float* const x = w + i;
    for (int j = 0; j < 16; ++j) x[j] = cpu::softmax_exp(x[j] - max);
  }
  for (std::int64_t i = 0; i < begin; ++i) w[i] = 0.0F;
  for (std::int64_t i = end; i < tile_tokens; ++i) w[i] = 0.0F;
  Floats sums = {};
  for (std::int64_t i = 0; i < tile_tokens; i += lanes_of_floats) sums += at(w + i);
  sum = folded(sums);
}

// ---- the tile -----------------------------------------------------------------------------------

/// How far ahead memory is asked for: to the second level cache, which has room. To the first one
/// the same prefetches bring little (docs/performance-data.md).
constexpr std::int64_t bytes_ahead = 65536;

[[gnu::always_inline]] inline std::int64_t bytes_of_vector(HeadTensor const& t) {
  constexpr std::int8_t bits[] = {32, 16, 16, 8, 8, 8, 8, 4};
  return (std::int64_t{t.dim} * bits[t.element] + 7) / 8;
}

/// Tokens from `position` on, as they will be read: behind the K of a tile comes its V, behind
/// that the K of the next one.
[[gnu::always_inline]] inline Ahead ahead_of(TileArgs const& a, bool is_k, std::int64_t position,
                                             std::int64_t begin, std::int64_t end) {
  HeadTensor const& t = is_k == (position < end) ? a.k : a.v;
  if (is_k && position >= end) position = begin + (position - end);
  if (position >= a.sequence_end) return {};
  Place const place = place_of(t, a.table[position / a.block_tokens], position % a.block_tokens);
  bool const has_scales = t.scale_block_stride != 0;
  return {place.bytes, t.token_stride, bytes_of_vector(t), has_scales ? place.scale : nullptr,
          t.scale_token_stride};
}

/// Calls visit(chunk, position of its first token in the tile, tokens) for the tile's positions
/// begin .. end - 1 of K, or of V, whose element it is.
template <Element element, class Visit>
[[gnu::always_inline]] inline void for_each_chunk(TileArgs const& a, bool is_k, std::int64_t begin,
                                                  std::int64_t end, Visit visit) {
  alignas(64) float buffer[chunk_floats];
  HeadTensor const& t = is_k ? a.k : a.v;
  std::int64_t const fitting = chunk_floats / padded(t.dim);
  std::int64_t const most = fitting < chunk_tokens ? fitting : chunk_tokens;
  // Whole blocks, so that the tokens asked for lie in one block too.
  std::int64_t const block_bytes = a.block_tokens * bytes_of_vector(t);
  std::int64_t const blocks = (bytes_ahead + block_bytes - 1) / block_bytes;
  std::int64_t const tile_blocks = (tile_tokens + a.block_tokens - 1) / a.block_tokens;
  std::int64_t const distance = (blocks < tile_blocks ? blocks : tile_blocks) * a.block_tokens;
  std::int64_t column = begin / a.block_tokens;
  std::int64_t offset = begin % a.block_tokens;
  for (std::int64_t p = begin; p < end;) {
    std::int64_t count = a.block_tokens - offset;
    count = count < most ? count : most;
    count = count < end - p ? count : end - p;
    Ahead const ahead = ahead_of(a, is_k, p + distance, begin, end);
    use_chunk<element>(t, place_of(t, a.table[column], offset), count, ahead, a.num_lanes == 1,
                       buffer, [&](auto const& chunk) { visit(chunk, p - a.tile_begin, count); });
    p += count;
    offset += count;
    if (offset == a.block_tokens) {
      offset = 0;
      ++column;
    }
  }
}

struct Overlap {
  std::int64_t first;
  std::int64_t end;
};
/// What of a chunk a lane sees, in tokens of the chunk.
[[gnu::always_inline]] inline Overlap overlap(TileArgs const& a, int lane, std::int64_t at_tile,
                                              std::int64_t count) {
  std::int64_t const begin = a.begin[lane] - a.tile_begin - at_tile;
  std::int64_t const end = a.end[lane] - a.tile_begin - at_tile;
  return {begin > 0 ? begin : 0, end < count ? end : count};
}

using Weights = float[max_lanes][tile_tokens + chunk_tokens];

/// weights[lane][t]: the scores of the tile's positions begin .. end - 1 that a lane sees.
template <Element element>
void score_tile(TileArgs const& a, std::int64_t begin, std::int64_t end, Weights& weights) {
  std::int64_t const width = padded(a.k.dim);
  for_each_chunk<element>(a, true, begin, end,
                          [&](auto chunk, std::int64_t at_tile, std::int64_t count) {
                            for (int lane = 0; lane < a.num_lanes; ++lane) {
                              auto const seen = overlap(a, lane, at_tile, count);
                              if (seen.first >= seen.end) continue;
                              scores_of(chunk, a.q + lane * a.q_stride, width, seen.first, seen.end,
                                        a.softmax_scale, weights[lane] + at_tile);
                              chunk.ahead = {};
                            }
                          });
}

/// acc of each lane: the tile's V, weighted.
template <Element element>
void sum_tile(TileArgs const& a, std::int64_t begin, std::int64_t end, Weights& weights) {
  std::int64_t const width = padded(a.v.dim);
  for_each_chunk<element>(a, false, begin, end,
                          [&](auto chunk, std::int64_t at_tile, std::int64_t count) {
                            for (int lane = 0; lane < a.num_lanes; ++lane) {
                              auto const seen = overlap(a, lane, at_tile, count);
                              if (seen.first >= seen.end) continue;
                              accumulate(chunk, weights[lane] + at_tile, seen.first, seen.end,
                                         width, a.acc + lane * a.acc_stride);
                              chunk.ahead = {};
                            }
                          });
}

#define PAGEDKV_SCORE_TILE(e) &score_tile<e>
#define PAGEDKV_SUM_TILE(e) &sum_tile<e>
using TilePass = void (*)(TileArgs const&, std::int64_t begin, std::int64_t end, Weights&);
constexpr TilePass score_passes[] = PAGEDKV_EVERY_ELEMENT(PAGEDKV_SCORE_TILE);
constexpr TilePass sum_passes[] = PAGEDKV_EVERY_ELEMENT(PAGEDKV_SUM_TILE);

void attend_tile(TileArgs& a) {
  alignas(64) Weights weights;
  std::int64_t begin = INT64_MAX;
  std::int64_t end = 0;
  for (int lane = 0; lane < a.num_lanes; ++lane) {
    if (a.begin[lane] >= a.end[lane]) continue;
    begin = a.begin[lane] < begin ? a.begin[lane] : begin;
    end = a.end[lane] > end ? a.end[lane] : end;
  }
  if (begin >= end) return;

  score_passes[a.k.element](a, begin, end, weights);
  std::int64_t const v_width = padded(a.v.dim);
  for (int lane = 0; lane < a.num_lanes; ++lane) {
    if (a.begin[lane] >= a.end[lane]) continue;
    weigh(weights[lane], a.begin[lane] - a.tile_begin, a.end[lane] - a.tile_begin, a.max[lane],
          a.sum[lane]);
    float* const acc = a.acc + lane * a.acc_stride;
    for (std::int64_t d = 0; d < v_width; ++d) acc[d] = 0.0F;
  }
  sum_passes[a.v.element](a, begin, end, weights);
}

}  // namespace
PAGEDKV_NAMESPACE_END
