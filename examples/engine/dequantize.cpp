// SPDX-License-Identifier: Apache-2.0
#include "dequantize.hpp"

#include <bit>
#include <cstring>
#include <pagedkv/quant/half.hpp>

namespace engine {

namespace {

namespace quant = pagedkv::quant;

std::uint16_t word(std::byte const* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}
float f16(std::byte const* at) { return quant::decode_f16(word(at)); }

int low_nibble(std::byte b) { return std::to_integer<int>(b & std::byte{0x0F}); }
int high_nibble(std::byte b) { return std::to_integer<int>(b >> 4); }
int signed_byte(std::byte b) { return static_cast<std::int8_t>(std::to_integer<std::uint8_t>(b)); }

/// 32 numbers: d, 16 bytes. The low nibbles are the first half, less 8.
void q4_0(std::byte const* in, float* out) {
  float const d = f16(in);
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(low_nibble(in[2 + i]) - 8) * d;
    out[i + 16] = static_cast<float>(high_nibble(in[2 + i]) - 8) * d;
  }
}

/// 32 numbers: d, m, 16 bytes: nibble * d + m.
void q4_1(std::byte const* in, float* out) {
  float const d = f16(in);
  float const m = f16(in + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(low_nibble(in[4 + i])) * d + m;
    out[i + 16] = static_cast<float>(high_nibble(in[4 + i])) * d + m;
  }
}

/// 32 numbers: d, 32 signed bytes.
void q8_0(std::byte const* in, float* out) {
  float const d = f16(in);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(signed_byte(in[2 + i])) * d;
}

/// 256 numbers: low nibbles [128], two high bits each [64], scales of 16 numbers each [16], d.
void q6_k(std::byte const* in, float* out) {
  std::byte const* const lows = in;
  std::byte const* const highs = in + 128;
  std::byte const* const scales = in + 192;
  float const d = f16(in + 208);
  for (int i = 0; i < 256; ++i) {
    int const half = i / 128;        // each has 64 low bytes and 32 high ones
    int const quarter = i / 32 % 4;  // of a half: which bits of the high byte
    int const place = i % 32;
    std::byte const low = lows[64 * half + 32 * (quarter % 2) + place];
    int const low_bits = quarter < 2 ? low_nibble(low) : high_nibble(low);
    int const high_bits = std::to_integer<int>(highs[32 * half + place] >> (2 * quarter)) & 3;
    int const scale = signed_byte(scales[i / 16]);
    out[i] = d * static_cast<float>(scale) * static_cast<float>((high_bits << 4 | low_bits) - 32);
  }
}

}  // namespace

std::optional<TypeLayout> layout_of(std::uint32_t type) noexcept {
  switch (static_cast<TensorType>(type)) {
    case TensorType::f32: return TypeLayout{1, 4};
    case TensorType::f16:
    case TensorType::bf16: return TypeLayout{1, 2};
    case TensorType::q4_0: return TypeLayout{32, 18};
    case TensorType::q4_1: return TypeLayout{32, 20};
    case TensorType::q8_0: return TypeLayout{32, 34};
    case TensorType::q6_k: return TypeLayout{256, 210};
  }
  return std::nullopt;
}

void dequantize(TensorType type, std::span<std::byte const> bytes, std::span<float> out) {
  static_assert(std::endian::native == std::endian::little, "files are little-endian");
  auto const layout = *layout_of(static_cast<std::uint32_t>(type));
  if (type == TensorType::f32) {
    std::memcpy(out.data(), bytes.data(), out.size_bytes());
    return;
  }
  std::byte const* in = bytes.data();
  for (std::size_t i = 0; i < out.size(); i += layout.block_elements, in += layout.block_bytes) {
    switch (type) {
      case TensorType::f16: out[i] = f16(in); break;
      case TensorType::bf16: out[i] = quant::decode_bf16(word(in)); break;
      case TensorType::q4_0: q4_0(in, &out[i]); break;
      case TensorType::q4_1: q4_1(in, &out[i]); break;
      case TensorType::q8_0: q8_0(in, &out[i]); break;
      case TensorType::q6_k: q6_k(in, &out[i]); break;
      case TensorType::f32: break;
    }
  }
}

}  // namespace engine
