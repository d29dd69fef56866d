#include "cistron/model/hugging_face.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cistron/core/rng.h"
#include "cistron/io/safetensors.h"
#include "cistron/model/decoder.h"
#include "tests/model/decoder_support.h"

namespace cistron::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Values = std::map<std::string, std::vector<float>>;

class HuggingFace : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        fs::path(::testing::TempDir()) / ("hf_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    config_ = small_config();
    config_.z_loss = 0;  // Hugging Face has no key for it
    config_.validate();
    const model::Decoder decoder(config_);
    for (const Parameter* p : decoder.parameters()) {
      const Rng rng(9, stream_of(p->name.c_str()));
      auto& v = values_[p->name];
      for (int64_t i = 0; i < p->shape.numel(); ++i) v.push_back(static_cast<float>(rng.normal(static_cast<uint64_t>(i))));
    }
  }
  void TearDown() override { fs::remove_all(directory_); }

  void save(int64_t shard_bytes = int64_t{1} << 30) {
    model::export_hugging_face(
        directory_, config_, {},
        [&](const std::string& name, int64_t first, std::span<float> out) {
          std::ranges::copy_n(values_.at(name).begin() + first, std::ssize(out), out.begin());
        },
        shard_bytes);
  }
  [[nodiscard]] Values load() const {
    Values read;
    model::import_hugging_face(directory_, config_, [&](const std::string& name, std::span<const float> v) {
      EXPECT_TRUE(read.emplace(name, std::vector<float>(v.begin(), v.end())).second) << name << " came twice";
    });
    return read;
  }
  // Writes every tensor again, changed by `change` (which may drop it by clearing the name).
  void rewrite(const std::function<void(io::TensorSpec&, std::vector<std::byte>&)>& change) {
    std::vector<io::TensorSpec> specs;
    std::vector<std::vector<std::byte>> bytes;
    {
      const io::SafetensorsModel model(directory_);
      for (const auto& [name, view] : model.tensors()) {
        specs.push_back(view->spec);
        bytes.emplace_back(view->bytes.begin(), view->bytes.end());
        change(specs.back(), bytes.back());
        if (specs.back().name.empty()) specs.pop_back(), bytes.pop_back();
      }
    }
    io::SafetensorsWriter writer(directory_ / "model.safetensors", specs);
    for (size_t i = 0; i < specs.size(); ++i) writer.write(specs[i].name, bytes[i]);
    writer.commit();
  }
  void edit_config(const std::function<void(nlohmann::json&)>& change) const {
    nlohmann::json object = nlohmann::json::parse(std::ifstream(directory_ / "config.json"));
    change(object);
    std::ofstream(directory_ / "config.json") << object;
  }

  fs::path directory_;
  model::ModelConfig config_;
  Values values_;
};

TEST_F(HuggingFace, RoundTripIsExact) {
  save();
  EXPECT_EQ(model::read_hugging_face_config(directory_), config_);
  EXPECT_EQ(load(), values_);
}

TEST_F(HuggingFace, ShardsHoldTheSame) {
  save(/*shard_bytes=*/20000);
  EXPECT_TRUE(fs::exists(directory_ / "model.safetensors.index.json"));
  EXPECT_EQ(load(), values_);
}

TEST_F(HuggingFace, GateIsW1AndUpIsW3) {
  save();
  const io::SafetensorsModel model(directory_);
  const auto& w3 = model.at("model.layers.1.block_sparse_moe.experts.3.w3.weight");
  const int64_t half = config_.intermediate * config_.hidden;
  EXPECT_EQ(
      std::memcmp(w3.bytes.data(), &values_.at("layers.1.moe.gate_up")[static_cast<size_t>((2 * 3 + 1) * half)], w3.bytes.size()),
      0);
}

TEST_F(HuggingFace, HalfPrecisionIsRead) {
  save();
  rewrite([](io::TensorSpec& spec, std::vector<std::byte>& bytes) {
    std::vector<std::byte> narrow(bytes.size() / 2);
    for (size_t i = 0; i < narrow.size() / 2; ++i) {
      float x;
      std::memcpy(&x, &bytes[4 * i], 4);
      const bf16 rounded(x);
      std::memcpy(&narrow[2 * i], &rounded, 2);
    }
    spec.dtype = "BF16";
    bytes = narrow;
  });
  for (const auto& [name, read] : load())
    for (size_t i = 0; i < read.size(); ++i) ASSERT_EQ(read[i], static_cast<float>(bf16(values_.at(name)[i])));
}

TEST_F(HuggingFace, TheStackedLayoutIsRead) {
  save();
  std::map<std::string, std::vector<std::byte>> stacked;
  rewrite([&](io::TensorSpec& spec, std::vector<std::byte>& bytes) {
    const auto at = spec.name.find(".block_sparse_moe.");
    if (at == std::string::npos) return;
    const std::string layer = spec.name.substr(0, at);
    if (spec.name.ends_with(".gate.weight")) {
      spec.name = layer + ".mlp.gate.weight";
    } else if (spec.name.ends_with("experts.0.w1.weight")) {
      const auto raw = std::as_bytes(std::span(values_.at(layer.substr(6) + ".moe.gate_up")));
      bytes.assign(raw.begin(), raw.end());
      spec = {layer + ".mlp.experts.gate_up_proj", "F32", {config_.experts, 2 * config_.intermediate, config_.hidden}};
    } else if (spec.name.ends_with("experts.0.w2.weight")) {
      const auto raw = std::as_bytes(std::span(values_.at(layer.substr(6) + ".moe.down")));
      bytes.assign(raw.begin(), raw.end());
      spec = {layer + ".mlp.experts.down_proj", "F32", {config_.experts, config_.hidden, config_.intermediate}};
    } else {
      spec.name.clear();
    }
  });
  EXPECT_EQ(load(), values_);
}

TEST_F(HuggingFace, RefusesWhatDoesNotFit) {
  save();
  const auto load_error = [&] { return error_of([&] { static_cast<void>(load()); }); };
  rewrite([](io::TensorSpec& spec, auto&) {
    if (spec.name == "model.norm.weight") spec.name = "model.norms.weight";
  });
  EXPECT_THAT(load_error(), HasSubstr("'model.norm.weight' is missing"));
  save();
  rewrite([](io::TensorSpec& spec, auto&) {
    if (spec.name == "lm_head.weight") std::swap(spec.shape[0], spec.shape[1]);
  });
  EXPECT_THAT(load_error(), HasSubstr("'lm_head.weight' is [48, 29], config.json wants [29, 48]"));
  save();
  rewrite([](io::TensorSpec& spec, auto&) {
    if (spec.name == "lm_head.weight") spec.dtype = "I32";
  });
  EXPECT_THAT(load_error(), HasSubstr("'lm_head.weight' is of I32"));
  save();
  rewrite([](io::TensorSpec& spec, std::vector<std::byte>& bytes) {
    const float nan = std::nanf("");
    if (spec.name == "lm_head.weight") std::memcpy(bytes.data() + 40, &nan, 4);
  });
  EXPECT_THAT(load_error(), HasSubstr("'lm_head.weight' holds a value that is not finite"));
  save();
  config_.layers = 1;
  EXPECT_THAT(load_error(), HasSubstr("has no place"));
}

TEST_F(HuggingFace, ConfigsOfOtherModelsAreRefused) {
  const auto refused = [&](const std::function<void(nlohmann::json&)>& change) {
    save();
    edit_config(change);
    return error_of([&] { model::read_hugging_face_config(directory_); });
  };
  EXPECT_THAT(refused([](auto& c) { c["model_type"] = "llama"; }), HasSubstr("model_type 'llama'"));
  EXPECT_THAT(refused([](auto& c) { c["sliding_window"] = 4096; }), HasSubstr("sliding_window 4096"));
  EXPECT_THAT(refused([](auto& c) { c["rope_parameters"]["rope_type"] = "yarn"; }), HasSubstr("rope_type 'yarn'"));
  EXPECT_THAT(refused([](auto& c) { c.erase("hidden_size"); }), HasSubstr("'hidden_size' is missing"));
  EXPECT_THAT(refused([](auto& c) { c["hidden_size"] = "48"; }), HasSubstr("wrong type"));
  EXPECT_THAT(refused([](auto& c) { c["num_experts_per_tok"] = 99; }), HasSubstr("only 5 experts"));
  EXPECT_THAT(refused([](auto& c) { c["rope_parameters"]["rope_theta"] = 5.0; }), HasSubstr("make them equal"));
  EXPECT_THAT(refused([](auto& c) { c["quantization_config"] = {{"bits", 4}}; }), HasSubstr("quantized"));
  EXPECT_THAT(refused([](auto& c) { c["num_hidden_layers"] = 1000000000; }), HasSubstr("from 1 to 2048"));
  EXPECT_EQ(refused([](auto& c) { c.erase("rope_parameters"); }), "");  // the older spelling is there too
  std::ofstream(directory_ / "config.json") << "{\"hidden_size\": ";
  EXPECT_THAT(error_of([&] { model::read_hugging_face_config(directory_); }), HasSubstr("broken JSON"));
}

TEST_F(HuggingFace, AClampIsNotExported) {
  config_.clip_qkv = 8;
  EXPECT_THAT(error_of([&] { save(); }), HasSubstr("does not clamp"));
}

}  // namespace
}  // namespace cistron::test
