// SPDX-License-Identifier: Apache-2.0
/// \file
/// Model files: read right, and refused with a name when they are wrong.
#include <array>
#include <functional>
#include <limits>
#include <pagedkv/quant/half.hpp>

#include "dequantize.hpp"
#include "engine_helpers.hpp"
#include "gguf.hpp"
#include "gguf_writer.hpp"
#include "llama2c.hpp"
#include "load_model.hpp"
#include "random.hpp"
#include "run_program.hpp"
#include "tokenizer.hpp"

namespace {

namespace kv = pagedkv;
using kv::testing::contains_text;
using kv::testing::TemporaryFolder;
using testing::Bytes;

engine::ModelConfig small_config() {
  auto c = testing::tiny_config();
  c.vocab_size = 12;
  c.dim = 16;
  c.hidden_dim = 20;
  return c;
}

std::string gguf_bytes(engine::Model const& model) {
  auto writer = testing::gguf_metadata(model.config);
  testing::add_tensors(writer, model);
  return writer.bytes();
}

engine::Model load(std::string const& bytes, TemporaryFolder const& folder) {
  auto const path = folder.file("model.gguf");
  testing::write_file(path, bytes);
  engine::GgufFile file(path);
  return engine::load_gguf_model(file);
}

bool equal(engine::Model const& a, engine::Model const& b) {
  bool same = a.config == b.config && a.embedding == b.embedding && a.final_norm == b.final_norm &&
              a.classifier == b.classifier && a.layers.size() == b.layers.size();
  for (std::size_t i = 0; same && i < a.layers.size(); ++i) {
    auto const& x = a.layers[i];
    auto const& y = b.layers[i];
    same = x.attention_norm == y.attention_norm && x.qkv == y.qkv && x.wo == y.wo &&
           x.ffn_norm == y.ffn_norm && x.gate_up == y.gate_up && x.down == y.down;
  }
  return same;
}

/// What loading says; empty when it succeeds.
std::string error_of(std::function<void()> const& load_it) {
  try {
    load_it();
  } catch (engine::LoadError const& error) {
    return error.what();
  }
  return {};
}

std::string llama2c_bytes(engine::Model const& model) {
  auto const& c = model.config;
  Bytes out;
  auto const floats = [&out](std::vector<float> const& v, std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) out.number(v[i]);
  };
  auto const all = [&](std::vector<float> const& v) { floats(v, 0, v.size()); };
  bool const tied = model.classifier.empty();
  for (auto const n : {c.dim, c.hidden_dim, c.num_layers, c.num_heads, c.num_kv_heads,
                       tied ? c.vocab_size : -c.vocab_size, c.max_positions}) {
    out.number(n);
  }
  auto const dim = static_cast<std::size_t>(c.dim);
  auto const q = static_cast<std::size_t>(c.q_dim()) * dim;
  auto const k = static_cast<std::size_t>(c.kv_dim()) * dim;
  auto const h = static_cast<std::size_t>(c.hidden_dim) * dim;
  all(model.embedding);
  for (auto const& l : model.layers) all(l.attention_norm);
  for (auto const& l : model.layers) floats(l.qkv, 0, q);
  for (auto const& l : model.layers) floats(l.qkv, q, k);
  for (auto const& l : model.layers) floats(l.qkv, q + k, k);
  for (auto const& l : model.layers) all(l.wo);
  for (auto const& l : model.layers) all(l.ffn_norm);
  for (auto const& l : model.layers) floats(l.gate_up, 0, h);
  for (auto const& l : model.layers) all(l.down);
  for (auto const& l : model.layers) floats(l.gate_up, h, h);
  all(model.final_norm);
  for (std::int32_t i = 0; i < c.max_positions * c.head_dim; ++i) out.number(0.0F);
  all(model.classifier);
  return out.text();
}

/// With a tokenizer of 12 pieces inside: byte pairs, or sentence pieces.
std::string gguf_with_tokenizer(engine::Model const& model, bool byte_pairs) {
  auto writer = testing::gguf_metadata(model.config);
  std::vector<std::string> const pieces = {"<unk>", "<s>", "</s>", "a", "b", "c",
                                           "d",     "ab",  "cd",   "e", "f", "<x>"};
  std::vector<std::int32_t> const kinds = {2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 4};
  writer.text("tokenizer.ggml.model", byte_pairs ? "gpt2" : "llama");
  writer.texts("tokenizer.ggml.tokens", pieces).integers("tokenizer.ggml.token_type", kinds);
  if (byte_pairs) {
    writer.texts("tokenizer.ggml.merges", {"a b", "c d"});
  } else {
    writer.reals("tokenizer.ggml.scores", std::vector<float>(pieces.size(), -1.0F));
  }
  writer.count("tokenizer.ggml.bos_token_id", 1).count("tokenizer.ggml.eos_token_id", 2);
  testing::add_tensors(writer, model);
  return writer.bytes();
}

engine::ModelConfig llama2c_config() {
  auto c = small_config();
  c.head_dim = c.dim / c.num_heads;  // what the format can say
  return c;
}

}  // namespace

TEST_CASE("a GGUF file gives back the model that was written, tied or not") {
  TemporaryFolder const folder;
  for (bool const tied : {true, false}) {
    auto const model = engine::random_model(small_config(), 3, tied);
    CHECK(equal(load(gguf_bytes(model), folder), model));
  }
}

TEST_CASE("a llama2.c checkpoint gives back the model that was written, tied or not") {
  TemporaryFolder const folder;
  for (bool const tied : {true, false}) {
    auto const model = engine::random_model(llama2c_config(), 4, tied);
    testing::write_file(folder.file("model.bin"), llama2c_bytes(model));
    CHECK(equal(engine::load_llama2c(folder.file("model.bin")), model));
  }
}

TEST_CASE("a truncated file is refused at every length, by name") {
  TemporaryFolder const folder;
  auto const gguf = gguf_bytes(engine::random_model(small_config(), 3));
  for (std::size_t length = 1; length < gguf.size(); length += length < 1500 ? 7 : 301) {
    auto const error = error_of([&] { (void)load(gguf.substr(0, length), folder); });
    INFO("of " << gguf.size() << " bytes " << length << ": " << error);
    CHECK_THAT(error, contains_text("model.gguf: "));
  }
  auto const llama2c = llama2c_bytes(engine::random_model(llama2c_config(), 4));
  for (std::size_t length = 1; length < llama2c.size(); length += length < 40 ? 1 : 977) {
    auto const path = folder.file("model.bin");
    testing::write_file(path, llama2c.substr(0, length));
    CHECK_THAT(error_of([&] { (void)engine::load_llama2c(path); }), contains_text("model.bin: "));
  }
}

TEST_CASE("a file with any byte changed is read or refused, and nothing else happens") {
  TemporaryFolder const folder;
  auto const good = gguf_bytes(engine::random_model(small_config(), 3));
  auto const directory = good.find("blk.1.ffn_down.weight") + 64;
  engine::Random random(1);
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    auto bytes = good;
    for (std::uint64_t n = 1 + random.below(3); n > 0; --n) {
      bytes[random.below(directory)] = static_cast<char>(random.below(256));
    }
    refused += !error_of([&] { (void)load(bytes, folder); }).empty();
  }
  CHECK(refused > 500);
}

TEST_CASE("a changed tokenizer is refused, or encodes to ids that the model has") {
  TemporaryFolder const folder;
  auto const model = engine::random_model(small_config(), 3);
  auto const path = folder.file("model.gguf");
  for (bool const byte_pairs : {true, false}) {
    auto const good = gguf_with_tokenizer(model, byte_pairs);
    testing::write_file(path, good);
    CHECK(engine::load_model(path, "").tokenizer->encode("abcde<x>f").size() >= 5);
    auto const first = good.find("tokenizer.ggml.model");
    auto const count = good.find("token_embd.weight") - first;
    engine::Random random(2);
    int refused = 0;
    for (int i = 0; i < 600; ++i) {
      auto bytes = good;
      for (std::uint64_t n = 1 + random.below(3); n > 0; --n) {
        bytes[first + random.below(count)] = static_cast<char>(random.below(i % 2 == 0 ? 16 : 256));
      }
      testing::write_file(path, bytes);
      auto const error = error_of([&] {
        auto const loaded = engine::load_model(path, "");
        REQUIRE(loaded.tokenizer != nullptr);
        for (auto const id : loaded.tokenizer->encode("abcde<x>f \xFF")) {
          if (id < 0 || id >= model.config.vocab_size) FAIL("id " << id);
          (void)loaded.tokenizer->piece(-1, id);
        }
      });
      refused += !error.empty();
    }
    CHECK(refused > 100);
    CHECK(refused < 600);
  }
}

TEST_CASE("a llama2.c checkpoint with any byte changed is read or refused") {
  TemporaryFolder const folder;
  auto const path = folder.file("model.bin");
  auto const good = llama2c_bytes(engine::random_model(llama2c_config(), 4));
  engine::Random random(3);
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    auto bytes = good;
    auto const at = i % 2 == 0 ? random.below(28) : random.below(bytes.size());
    bytes[at] = static_cast<char>(random.below(256));
    testing::write_file(path, bytes);
    refused += !error_of([&] { (void)engine::load_llama2c(path); }).empty();
  }
  CHECK(refused > 300);
  CHECK(refused < 1000);
}

TEST_CASE("a file of neither kind is said to be none, whatever its bytes would mean") {
  TemporaryFolder const folder;
  auto const path = folder.file("config.json");
  testing::write_file(path, R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 576})");
  CHECK_THAT(error_of([&] { (void)engine::load_model(path, ""); }),
             contains_text("not a GGUF file, so read as a llama2.c checkpoint"));
}

TEST_CASE("a weight that is no finite number is refused with its tensor and place") {
  TemporaryFolder const folder;
  for (float const bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    auto model = engine::random_model(small_config(), 3);
    model.layers[1].down[33] = bad;
    CHECK_THAT(error_of([&] { (void)load(gguf_bytes(model), folder); }),
               contains_text("model.gguf: blk.1.ffn_down.weight: number 33 is "));
    auto other = engine::random_model(llama2c_config(), 4);
    other.layers[0].ffn_norm[5] = bad;
    testing::write_file(folder.file("model.bin"), llama2c_bytes(other));
    CHECK_THAT(error_of([&] { (void)engine::load_llama2c(folder.file("model.bin")); }),
               contains_text("model.bin: rms_ffn: number 5 is "));
  }
}

TEST_CASE("a vocabulary without the tokens that every one has is refused") {
  TemporaryFolder const folder;
  auto const path = folder.file("tok.bin");
  Bytes two;
  two.number(std::int32_t{5});
  for (int i = 0; i < 2; ++i) two.number(0.0F).number(std::int32_t{1}).raw("a");
  testing::write_file(path, two.text());
  CHECK_THAT(error_of([&] { (void)engine::load_llama2c_tokenizer(path, 2); }),
             contains_text("tok.bin: tokens: expected at least 3"));
  auto const model = engine::random_model(small_config(), 3);
  auto writer = testing::gguf_metadata(model.config);
  writer.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", {});
  writer.flag("tokenizer.ggml.add_bos_token", false);
  testing::add_tensors(writer, model);
  testing::write_file(folder.file("model.gguf"), writer.bytes());
  CHECK_THAT(error_of([&] { (void)engine::load_model(folder.file("model.gguf"), ""); }),
             contains_text("tokenizer.ggml.tokens: expected at least one token"));
}

TEST_CASE("what is wrong with a GGUF file is said with the tensor or key and what was expected") {
  TemporaryFolder const folder;
  auto const model = engine::random_model(small_config(), 3);
  auto const error = [&](std::function<void(testing::GgufWriter&)> const& change) {
    auto writer = testing::gguf_metadata(model.config);
    change(writer);
    testing::add_tensors(writer, model);
    return error_of([&] { (void)load(writer.bytes(), folder); });
  };
  CHECK(error([](auto&) {}).empty());
  std::vector<float> const row(16, 0.0F);
  CHECK_THAT(error([&](auto& w) { w.floats("blk.0.attn_q.bias", {16}, row.data()); }),
             contains_text("blk.0.attn_q.bias: the model has a tensor that isn't understood"));
  CHECK_THAT(error([&](auto& w) { w.floats("output_norm.weight", {16}, row.data()); }),
             contains_text("output_norm.weight: the tensor stands there twice"));
  CHECK_THAT(error([](auto& w) { w.tensor("x", {16}, 12, std::string(16, '0')); }),
             contains_text("x: type 12 isn't read; expected one of F32"));
  CHECK_THAT(error([](auto& w) { w.tensor("x", {20}, 8, std::string(34, '0')); }),
             contains_text("x: rows of 20 elements; expected a multiple of 32"));
  CHECK_THAT(error([](auto& w) {
               w.tensor("x", {1ULL << 39, 1ULL << 39}, 0, "");
             }),
             contains_text("x: dimension 1 is"));
  CHECK_THAT(error([](auto& w) { w.count("general.alignment", 24); }),
             contains_text("general.alignment: expected a power of two"));
  CHECK_THAT(error([](auto& w) { w.text("llama.rope.scaling.type", "yarn"); }),
             contains_text("llama.rope.scaling.type"));
  CHECK_THAT(error([](auto& w) { w.count("llama.block_count", 2); }),
             contains_text("llama.block_count: the key stands there twice"));

  auto wrong = model.config;
  wrong.hidden_dim = 24;
  auto writer = testing::gguf_metadata(wrong);
  testing::add_tensors(writer, model);
  CHECK_THAT(error_of([&] { (void)load(writer.bytes(), folder); }),
             contains_text("blk.0.ffn_gate.weight: expected shape [24, 16], is [20, 16]"));
  wrong = model.config;
  wrong.num_layers = 3;
  writer = testing::gguf_metadata(wrong);
  testing::add_tensors(writer, model);
  CHECK_THAT(error_of([&] { (void)load(writer.bytes(), folder); }),
             contains_text("blk.2.attn_q.weight: the tensor is missing"));
  CHECK_THAT(error_of([&] { engine::GgufFile const file(folder.file("absent")); }),
             contains_text("absent: can't be opened"));
}

TEST_CASE("quantized tensors are the numbers that their blocks say") {
  engine::Random random(7);
  auto const half = [](float x) { return kv::quant::encode_f16(x); };
  auto const numbers = [](engine::TensorType type, std::string const& bytes, std::size_t n) {
    std::vector<float> out(n);
    engine::dequantize(type, std::as_bytes(std::span(bytes)), out);
    return out;
  };
  // A block of each type, written from numbers of its own grid.
  std::vector<float> expected(64);
  auto const signed_random = [&random](int low, int high) {
    return low + static_cast<int>(random.below(static_cast<std::uint64_t>(high - low + 1)));
  };
  {
    Bytes q8, q40, q41, f16, bf16;
    std::vector<float> e8, e40, e41, e16;
    for (int block = 0; block < 2; ++block) {
      q8.number(half(0.5F));
      q40.number(half(0.25F));
      q41.number(half(0.125F)).number(half(-1.5F));
      std::array<int, 32> nibbles{};
      for (int i = 0; i < 32; ++i) {
        int const value = signed_random(-128, 127);
        q8.number(static_cast<std::int8_t>(value));
        e8.push_back(0.5F * static_cast<float>(value));
        nibbles[static_cast<std::size_t>(i)] = signed_random(0, 15);
        f16.number(half(static_cast<float>(value) / 8));
        bf16.number(kv::quant::encode_bf16(static_cast<float>(value) / 8));
        e16.push_back(static_cast<float>(value) / 8);
      }
      for (int const nibble : nibbles) {
        e40.push_back(0.25F * static_cast<float>(nibble - 8));
        e41.push_back(0.125F * static_cast<float>(nibble) - 1.5F);
      }
      for (std::size_t i = 0; i < 16; ++i) {
        auto const byte = static_cast<std::uint8_t>(nibbles[i] | nibbles[i + 16] << 4);
        q40.number(byte);
        q41.number(byte);
      }
    }
    CHECK(numbers(engine::TensorType::q8_0, q8.text(), 64) == e8);
    CHECK(numbers(engine::TensorType::q4_0, q40.text(), 64) == e40);
    CHECK(numbers(engine::TensorType::q4_1, q41.text(), 64) == e41);
    CHECK(numbers(engine::TensorType::f16, f16.text(), 64) == e16);
    CHECK(numbers(engine::TensorType::bf16, bf16.text(), 64) == e16);
  }
  // Q6_K: 256 six-bit numbers; element i's scale is number i / 16.
  std::array<int, 256> values{};
  std::array<std::uint8_t, 128> lows{};
  std::array<std::uint8_t, 64> highs{};
  std::array<std::int8_t, 16> scales{};
  for (auto& value : values) value = signed_random(0, 63);
  for (auto& scale : scales) scale = static_cast<std::int8_t>(signed_random(-128, 127));
  for (std::size_t h = 0; h < 2; ++h) {
    for (std::size_t l = 0; l < 32; ++l) {
      auto const value = [&](std::size_t quarter) { return values[128 * h + 32 * quarter + l]; };
      lows[64 * h + l] = static_cast<std::uint8_t>((value(0) & 15) | (value(2) & 15) << 4);
      lows[64 * h + 32 + l] = static_cast<std::uint8_t>((value(1) & 15) | (value(3) & 15) << 4);
      highs[32 * h + l] = static_cast<std::uint8_t>(value(0) >> 4 | value(1) >> 4 << 2 |
                                                    value(2) >> 4 << 4 | value(3) >> 4 << 6);
    }
  }
  Bytes q6;
  for (auto const b : lows) q6.number(b);
  for (auto const b : highs) q6.number(b);
  for (auto const b : scales) q6.number(b);
  q6.number(half(0.25F));
  std::vector<float> e6;
  for (std::size_t i = 0; i < 256; ++i) {
    e6.push_back(0.25F * static_cast<float>(scales[i / 16]) * static_cast<float>(values[i] - 32));
  }
  CHECK(numbers(engine::TensorType::q6_k, q6.text(), 256) == e6);
}

TEST_CASE("a tokenizer file that doesn't fit its model is refused") {
  TemporaryFolder const folder;
  auto const path = folder.file("tok.bin");
  Bytes good;
  good.number(std::int32_t{5});
  for (int i = 0; i < 4; ++i) good.number(-1.0F * static_cast<float>(i)).number(1).raw("a");
  testing::write_file(path, good.text());
  CHECK(engine::load_llama2c_tokenizer(path, 4)->vocab_size() == 4);
  CHECK_THAT(error_of([&] { (void)engine::load_llama2c_tokenizer(path, 5); }),
             contains_text("tok.bin: token 4: expected 4 bytes"));
  CHECK_THAT(error_of([&] { (void)engine::load_llama2c_tokenizer(path, 3); }),
             contains_text("tok.bin: end: expected 3 tokens"));
  Bytes bad;
  bad.number(std::int32_t{5}).number(0.0F).number(std::int32_t{-1});
  testing::write_file(path, bad.text());
  CHECK_THAT(error_of([&] { (void)engine::load_llama2c_tokenizer(path, 4); }),
             contains_text("tok.bin: token 0: expected a length of 0 to 5, is -1"));
}
