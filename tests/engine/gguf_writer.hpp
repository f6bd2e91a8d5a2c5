// SPDX-License-Identifier: Apache-2.0
/// \file
/// Writes GGUF files for tests.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "model.hpp"

namespace testing {

/// Bytes, little-endian.
class Bytes {
 public:
  template <class T>
  Bytes& number(T value) {
    text_.append(reinterpret_cast<char const*>(&value), sizeof value);
    return *this;
  }
  Bytes& string(std::string const& s) {
    number(std::uint64_t{s.size()});
    text_ += s;
    return *this;
  }
  Bytes& raw(std::string const& s) {
    text_ += s;
    return *this;
  }
  void align(std::size_t to) { text_.resize((text_.size() + to - 1) / to * to); }
  [[nodiscard]] std::string const& text() const { return text_; }

 private:
  std::string text_;
};

class GgufWriter {
 public:
  GgufWriter& text(std::string const& key, std::string const& value) {
    return key_of(key, 8, Bytes().string(value));
  }
  GgufWriter& count(std::string const& key, std::uint32_t value) {
    return key_of(key, 4, Bytes().number(value));
  }
  GgufWriter& real(std::string const& key, float value) {
    return key_of(key, 6, Bytes().number(value));
  }
  GgufWriter& flag(std::string const& key, bool value) {
    return key_of(key, 7, Bytes().number(std::uint8_t{value}));
  }
  GgufWriter& texts(std::string const& key, std::vector<std::string> const& values) {
    Bytes bytes;
    bytes.number(std::uint32_t{8}).number(std::uint64_t{values.size()});
    for (auto const& value : values) bytes.string(value);
    return key_of(key, 9, bytes);
  }
  GgufWriter& integers(std::string const& key, std::vector<std::int32_t> const& values) {
    Bytes bytes;
    bytes.number(std::uint32_t{5}).number(std::uint64_t{values.size()});
    for (auto const value : values) bytes.number(value);
    return key_of(key, 9, bytes);
  }
  GgufWriter& reals(std::string const& key, std::vector<float> const& values) {
    Bytes bytes;
    bytes.number(std::uint32_t{6}).number(std::uint64_t{values.size()});
    for (auto const value : values) bytes.number(value);
    return key_of(key, 9, bytes);
  }
  /// `shape`: innermost first.
  GgufWriter& tensor(std::string const& name, std::vector<std::uint64_t> const& shape,
                     std::uint32_t type, std::string const& data) {
    directory_.string(name).number(static_cast<std::uint32_t>(shape.size()));
    for (auto const length : shape) directory_.number(length);
    data_.align(32);
    directory_.number(type).number(std::uint64_t{data_.text().size()});
    data_.raw(data);
    ++num_tensors_;
    return *this;
  }
  GgufWriter& floats(std::string const& name, std::vector<std::uint64_t> const& shape,
                     float const* values) {
    std::uint64_t n = 1;
    for (auto const length : shape) n *= length;
    return tensor(name, shape, 0, {reinterpret_cast<char const*>(values), n * sizeof(float)});
  }

  [[nodiscard]] std::string bytes() const {
    Bytes all;
    all.raw("GGUF").number(std::uint32_t{3}).number(num_tensors_).number(num_keys_);
    all.raw(keys_.text()).raw(directory_.text());
    all.align(32);
    return all.text() + data_.text();
  }

 private:
  GgufWriter& key_of(std::string const& key, std::uint32_t type, Bytes const& value) {
    keys_.string(key).number(type).raw(value.text());
    ++num_keys_;
    return *this;
  }

  std::uint64_t num_keys_ = 0;
  std::uint64_t num_tensors_ = 0;
  Bytes keys_;
  Bytes directory_;
  Bytes data_;
};

/// The model's numbers as metadata.
inline GgufWriter gguf_metadata(engine::ModelConfig const& c) {
  GgufWriter w;
  auto const n = [](std::int32_t value) { return static_cast<std::uint32_t>(value); };
  w.text("general.architecture", "llama").count("llama.block_count", n(c.num_layers));
  w.count("llama.context_length", n(c.max_positions)).count("llama.embedding_length", n(c.dim));
  w.count("llama.feed_forward_length", n(c.hidden_dim));
  w.count("llama.attention.head_count", n(c.num_heads));
  w.count("llama.attention.head_count_kv", n(c.num_kv_heads));
  w.count("llama.attention.key_length", n(c.head_dim)).count("llama.vocab_size", n(c.vocab_size));
  w.real("llama.rope.freq_base", c.rope_base);
  w.real("llama.attention.layer_norm_rms_epsilon", c.norm_epsilon);
  return w;
}

/// The model's tensors, f32.
inline void add_tensors(GgufWriter& w, engine::Model const& model) {
  auto const& c = model.config;
  auto const n = [](std::int32_t value) { return static_cast<std::uint64_t>(value); };
  auto const at = [&c](std::vector<float> const& v, std::int32_t row) {
    return v.data() + static_cast<std::size_t>(row) * static_cast<std::size_t>(c.dim);
  };
  w.floats("token_embd.weight", {n(c.dim), n(c.vocab_size)}, model.embedding.data());
  w.floats("output_norm.weight", {n(c.dim)}, model.final_norm.data());
  if (!model.classifier.empty()) {
    w.floats("output.weight", {n(c.dim), n(c.vocab_size)}, model.classifier.data());
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    auto const& l = model.layers[i];
    auto const name = [i](char const* part) {
      return "blk." + std::to_string(i) + "." + part + ".weight";
    };
    w.floats(name("attn_norm"), {n(c.dim)}, l.attention_norm.data());
    w.floats(name("attn_q"), {n(c.dim), n(c.q_dim())}, at(l.qkv, 0));
    w.floats(name("attn_k"), {n(c.dim), n(c.kv_dim())}, at(l.qkv, c.q_dim()));
    w.floats(name("attn_v"), {n(c.dim), n(c.kv_dim())}, at(l.qkv, c.q_dim() + c.kv_dim()));
    w.floats(name("attn_output"), {n(c.q_dim()), n(c.dim)}, l.wo.data());
    w.floats(name("ffn_norm"), {n(c.dim)}, l.ffn_norm.data());
    w.floats(name("ffn_gate"), {n(c.dim), n(c.hidden_dim)}, at(l.gate_up, 0));
    w.floats(name("ffn_up"), {n(c.dim), n(c.hidden_dim)}, at(l.gate_up, c.hidden_dim));
    w.floats(name("ffn_down"), {n(c.hidden_dim), n(c.dim)}, l.down.data());
  }
}

inline void write_file(std::string const& path, std::string const& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace testing
