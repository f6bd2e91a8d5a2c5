// SPDX-License-Identifier: Apache-2.0
/// \file
/// One tile of attention in the order of attention_order.hpp. Included by kernels_level.hpp only.
///
/// A tile is read twice, K then V, chunk by chunk: at most `chunk_tokens` neighbours of one block.
/// A chunk is converted to f32 once for all lanes (f32 is read in place), and 16 tokens' partial
/// sums are folded together.

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

/// What is to be read soon: vectors of as many neighbouring tokens. Asked for one by one, between
/// the work on others: a burst of prefetches waits for the memory like loads do.
struct Ahead {
  std::byte const* bytes;  ///< null: nothing
  std::int64_t stride;
  std::int64_t vector_bytes;

  [[gnu::always_inline]] inline void fetch(std::int64_t token) const {
    if (bytes == nullptr) return;
    for (std::int64_t b = 0; b < vector_bytes; b += 64) {
      __builtin_prefetch(bytes + token * stride + b, 0, 2);
    }
  }
};

/// Neighbouring tokens of one block, as f32.
struct Chunk {
  float const* x;
  std::int64_t stride;  ///< floats
  Ahead ahead;          ///< for who goes through the tokens first
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

[[gnu::always_inline]] inline Chunk chunk_of(HeadTensor const& t, std::int64_t block,
                                             std::int64_t offset, std::int64_t count, Ahead ahead,
                                             float* buffer) {
  std::byte const* const bytes = t.data + block * t.block_stride + offset * t.token_stride;
  float const* const scale =
      t.scales == nullptr ? nullptr
                          : t.scales + block * t.scale_block_stride + offset * t.scale_token_stride;
  bool const in_place = t.element == static_cast<std::int32_t>(Element::f32) &&
                        t.dim % lanes_of_floats == 0 && t.token_stride % 4 == 0 &&
                        reinterpret_cast<std::uintptr_t>(bytes) % alignof(float) == 0;
  if (in_place) return {reinterpret_cast<float const*>(bytes), t.token_stride / 4, ahead};
  switch (static_cast<Element>(t.element)) {
    case Element::f32: decode_chunk<Element::f32>(t, bytes, scale, count, ahead, buffer); break;
    case Element::f16: decode_chunk<Element::f16>(t, bytes, scale, count, ahead, buffer); break;
    case Element::bf16: decode_chunk<Element::bf16>(t, bytes, scale, count, ahead, buffer); break;
    case Element::fp8_e4m3:
      decode_chunk<Element::fp8_e4m3>(t, bytes, scale, count, ahead, buffer);
      break;
    case Element::fp8_e5m2:
      decode_chunk<Element::fp8_e5m2>(t, bytes, scale, count, ahead, buffer);
      break;
    case Element::int8: decode_chunk<Element::int8>(t, bytes, scale, count, ahead, buffer); break;
    case Element::int8_asym:
      decode_chunk<Element::int8_asym>(t, bytes, scale, count, ahead, buffer);
      break;
    case Element::int4: decode_chunk<Element::int4>(t, bytes, scale, count, ahead, buffer); break;
  }
  return {buffer, padded(t.dim), {}};
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
[[gnu::always_inline]] inline void scores_of(Chunk chunk, float const* q, std::int64_t width,
                                             std::int64_t first, std::int64_t end, float scale,
                                             float* scores) {
  Floats sums[chunk_tokens] = {};
  for (std::int64_t t = first; t < end; ++t) {
    chunk.ahead.fetch(t);
    float const* const k = chunk.x + t * chunk.stride;
    Floats sum = {};
    for (std::int64_t d = 0; d < width; d += lanes_of_floats) sum += at(q + d) * at(k + d);
    sums[t] = sum;
  }
  float dots[chunk_tokens];
  fold16(sums, dots);
  for (std::int64_t t = first; t < end; ++t) scores[t] = dots[t] * scale;
}

/// acc[d] += weight * v[d], `count` vectors of floats, token after token.
template <int count>
[[gnu::always_inline]] inline void accumulate(Chunk chunk, float const* weights, std::int64_t first,
                                              std::int64_t end, float* acc) {
  Floats sums[count];
  for (int i = 0; i < count; ++i) sums[i] = at(acc + i * lanes_of_floats);
  for (std::int64_t t = first; t < end; ++t) {
    chunk.ahead.fetch(t);
    float const* const v = chunk.x + t * chunk.stride;
    float const weight = weights[t];
    for (int i = 0; i < count; ++i) sums[i] += weight * at(v + i * lanes_of_floats);
  }
  for (int i = 0; i < count; ++i) {
    *reinterpret_cast<FloatsAnywhere*>(acc + i * lanes_of_floats) = sums[i];
  }
}
[[gnu::always_inline]] inline void accumulate(Chunk chunk, float const* weights, std::int64_t first,
                                              std::int64_t end, std::int64_t width, float* acc) {
  std::int64_t d = 0;
  for (; d + 8 * lanes_of_floats <= width; d += 8 * lanes_of_floats) {
    accumulate<8>({chunk.x + d, chunk.stride, d == 0 ? chunk.ahead : Ahead{}}, weights, first, end,
                  acc + d);
  }
  for (; d + 4 * lanes_of_floats <= width; d += 4 * lanes_of_floats) {
    accumulate<4>({chunk.x + d, chunk.stride, d == 0 ? chunk.ahead : Ahead{}}, weights, first, end,
                  acc + d);
  }
  for (; d < width; d += lanes_of_floats) {
    accumulate<1>({chunk.x + d, chunk.stride, d == 0 ? chunk.ahead : Ahead{}}, weights, first, end,
                  acc + d);
  }
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
  std::int64_t const block = a.table[position / a.block_tokens];
  return {t.data + block * t.block_stride + position % a.block_tokens * t.token_stride,
          t.token_stride, bytes_of_vector(t)};
}

/// Calls visit(chunk, position of its first token in the tile, tokens) for the tile's positions
/// begin .. end - 1 of K, or of V.
template <class Visit>
[[gnu::always_inline]] inline void for_each_chunk(TileArgs const& a, bool is_k, std::int64_t begin,
                                                  std::int64_t end, float* buffer, Visit visit) {
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
    visit(chunk_of(t, a.table[column], offset, count, ahead, buffer), p - a.tile_begin, count);
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

void attend_tile(TileArgs& a) {
  alignas(64) float buffer[chunk_floats];
  alignas(64) float weights[max_lanes][tile_tokens + chunk_tokens];
  std::int64_t begin = INT64_MAX;
  std::int64_t end = 0;
  for (int lane = 0; lane < a.num_lanes; ++lane) {
    if (a.begin[lane] >= a.end[lane]) continue;
    begin = a.begin[lane] < begin ? a.begin[lane] : begin;
    end = a.end[lane] > end ? a.end[lane] : end;
  }
  if (begin >= end) return;

  std::int64_t const k_width = padded(a.k.dim);
  for_each_chunk(a, true, begin, end, buffer,
                 [&](Chunk chunk, std::int64_t at_tile, std::int64_t count) {
                   for (int lane = 0; lane < a.num_lanes; ++lane) {
                     auto const seen = overlap(a, lane, at_tile, count);
                     if (seen.first >= seen.end) continue;
                     scores_of(chunk, a.q + lane * a.q_stride, k_width, seen.first, seen.end,
                               a.softmax_scale, weights[lane] + at_tile);
                     chunk.ahead = {};
                   }
                 });

  std::int64_t const v_width = padded(a.v.dim);
  for (int lane = 0; lane < a.num_lanes; ++lane) {
    if (a.begin[lane] >= a.end[lane]) continue;
    weigh(weights[lane], a.begin[lane] - a.tile_begin, a.end[lane] - a.tile_begin, a.max[lane],
          a.sum[lane]);
    float* const acc = a.acc + lane * a.acc_stride;
    for (std::int64_t d = 0; d < v_width; ++d) acc[d] = 0.0F;
  }
  for_each_chunk(a, false, begin, end, buffer,
                 [&](Chunk chunk, std::int64_t at_tile, std::int64_t count) {
                   for (int lane = 0; lane < a.num_lanes; ++lane) {
                     auto const seen = overlap(a, lane, at_tile, count);
                     if (seen.first >= seen.end) continue;
                     accumulate(chunk, weights[lane] + at_tile, seen.first, seen.end, v_width,
                                a.acc + lane * a.acc_stride);
                     chunk.ahead = {};
                   }
                 });
}

}  // namespace
PAGEDKV_NAMESPACE_END
