#include "cistron/train/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cistron/core/error.h"
#include "cistron/train/config_keys.h"

namespace cistron::train {
namespace {

using testing::HasSubstr;

constexpr const char* kGood = R"([model]
preset = "tiny-protein"
[data]
store = "somewhere"
[train]
tokens = "2M"
)";

RunConfig resolved(const std::string& text, const std::vector<std::string>& overrides = {}) {
  RunConfig config = parse_config(text, "run.toml", overrides);
  resolve(config, /*fast_bf16=*/false);
  return config;
}

TEST(Config, ReadsWhatItSays) {
  const RunConfig config = resolved(std::string(kGood) + "[optimizer]\nlr = 3e-4\nbetas = [0.8, 0.9]\n[moe]\nz_loss = 1e-3\n");
  EXPECT_EQ(config.model.layers, 4);
  EXPECT_EQ(config.model.head_dim, 64);
  EXPECT_EQ(config.total_steps(), 489);  // ceil(2,000,000 / 4096)
  EXPECT_EQ(config.train.micro_batch_tokens, 4096);
  EXPECT_EQ(config.data.context, 512);
  EXPECT_DOUBLE_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.8, 0.9}));
  EXPECT_DOUBLE_EQ(config.model.z_loss, 1e-3);
  EXPECT_EQ(config.recipe, "fp32");
}

TEST(Config, AutomaticRecipeFollowsTheProcessor) {
  RunConfig config = parse_config(kGood, "run.toml");
  resolve(config, /*fast_bf16=*/true);
  EXPECT_EQ(config.recipe, "bf16");
}

TEST(Config, SaysWhatTheOptimizerKeeps) {
  RunConfig config = parse_config(kGood, "run.toml",
                                  {"optimizer.state_dtype=\"int8\"", "optimizer.masters=\"none\"",
                                   "optimizer.update_in_backward=true", "precision.recipe=bf16"});
  resolve(config, /*fast_bf16=*/false);
  EXPECT_EQ(config.storage().states, DType::kU8);
  EXPECT_FALSE(config.storage().masters);
  EXPECT_FALSE(config.storage().gradients);
  EXPECT_EQ(parse_config(kGood, "run.toml").storage().states, DType::kF32);
  EXPECT_TRUE(parse_config(kGood, "run.toml").storage().masters && parse_config(kGood, "run.toml").storage().gradients);
}

TEST(Config, OverridesBeatTheFileAndPresetsComeFirst) {
  const RunConfig config =
      resolved(std::string("[model]\nhidden = 128\npreset = \"tiny-protein\"\n[train]\nsteps = 5\n"),
               {"train.steps=7", "precision.recipe=fp32", "model.layers = 2", "train.tokens=1k", "data.store=\"a b\""});
  EXPECT_EQ(config.model.hidden, 128);
  EXPECT_EQ(config.model.head_dim, 32);
  EXPECT_EQ(config.model.layers, 2);
  EXPECT_EQ(config.total_steps(), 7);
  EXPECT_EQ(config.train.tokens, 1000);
  EXPECT_EQ(config.data.store, "a b");
}

TEST(Config, WrittenOutItReadsBackTheSame) {
  RunConfig config =
      resolved(kGood, {"optimizer.lr=0.1", "data.store=a\"b\\c", "moe.experts=loop", "train.seed=123456789012345"});
  const RunConfig again = parse_config(to_toml(config), "resolved.toml");
  EXPECT_THAT(differences(config, again), testing::IsEmpty());
  config.optimizer.lr = 0.2;
  EXPECT_THAT(differences(config, again), testing::ElementsAre("optimizer.lr: 0.2 -> 0.1"));
}

TEST(Config, TheInterfacesExampleIsTaken) {
  const RunConfig config = resolved(R"([model]
preset = "tiny-protein"
[data]
store = "data/proteins"
context = 512
[train]
tokens = "2M"
batch_tokens = 4096
micro_batch_tokens = 4096
seed = 1
validate_every = 100
checkpoint_every = 100
keep_last = 3
recompute = "none"
[optimizer]
lr = 2e-3
[precision]
recipe = "auto"
[moe]
experts = "grouped"
aux_loss = 0.01
z_loss = 1e-3
require_fused = false
[parallel]
dp = 1
ep = 1
fsdp = true
timeout_seconds = 600
headroom = 1.25
[device]
kind = "auto"
threads = 0
)");
  EXPECT_EQ(config.total_steps(), 489);
}

struct Refusal {
  std::string text;
  std::vector<std::string> overrides;
  std::vector<std::string> says;
};

class ConfigRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(ConfigRefusal, NamesWhereAndWhat) {
  try {
    resolved(GetParam().text, GetParam().overrides);
    FAIL() << "was taken: " << GetParam().text;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    for (const auto& part : GetParam().says) EXPECT_THAT(error.what(), HasSubstr(part));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Config, ConfigRefusal,
    testing::Values(
        Refusal{"[model]\nhiden = 3\n", {}, {"run.toml:2", "'hiden'", "did you mean 'hidden'"}},
        Refusal{"[modle]\nhidden = 3\n", {}, {"run.toml:2", "[modle]", "did you mean [model]"}},
        Refusal{"[train]\nsteps = \"many\"\n", {}, {"run.toml:2", "train.steps", "whole number"}},
        Refusal{"[train]\nsteps = 1.5\n", {}, {"train.steps", "whole number"}},
        Refusal{"[train]\ntokens = \"2X\"\n", {}, {"train.tokens", "2M"}},
        Refusal{"[train]\ntokens = \"1.5\"\n", {}, {"train.tokens"}},
        Refusal{"[train]\nsteps = -1\n", {}, {"train.steps = -1", "out of range"}},
        Refusal{"[optimizer]\nlr = nan\n", {}, {"optimizer.lr", "out of range"}},
        Refusal{"[optimizer]\nbetas = [0.9]\n", {}, {"optimizer.betas", "2 numbers"}},
        Refusal{"[optimizer]\nbetas = [0.9, 1.0]\n", {}, {"optimizer.betas", "out of range"}},
        Refusal{"[optimizer]\nbetas = [\"a\", \"b\"]\n", {}, {"run.toml:2", "list"}},
        Refusal{"[optimizer]\nlr = 1\nlr = 2\n", {}, {"run.toml:3", "lr"}},
        Refusal{"[optimizer]\nschedule = \"cosin\"\n", {}, {"'cosin'", "did you mean 'cosine'"}},
        Refusal{"[optimizer]\nschedule = 3\n", {}, {"optimizer.schedule", "string"}},
        Refusal{"[model]\ntied_head = 1\n", {}, {"model.tied_head", "true or false"}},
        Refusal{"[model]\npreset = \"tiny-protien\"\n", {}, {"run.toml:2", "did you mean 'tiny-protein'"}},
        Refusal{"[parallel]\ndp = -1\n", {}, {"parallel.dp = -1", "out of range"}},
        Refusal{"[parallel]\nep = 0\n", {}, {"parallel.ep = 0", "out of range"}},
        Refusal{kGood, {"precision.mxfp8.group=64"}, {"precision.mxfp8.group = 64", "128 or 32"}},
        Refusal{kGood, {"precision.mxfp8.group=16"}, {"precision.mxfp8.group = 16", "out of range"}},
        Refusal{kGood, {"precision.recipe=mxfp8", "moe.experts=loop"}, {"loop over experts", "moe.experts"}},
        Refusal{kGood, {"precision.recipe=mxfp8", "model.intermediate=320"}, {"multiples of 128", "intermediate is 320"}},
        Refusal{kGood, {"precision.recipe=mxfp8", "model.hidden=320"}, {"multiples of 128", "hidden is 320", "precision.recipe"}},
        Refusal{kGood,
                {"precision.recipe=mxfp8", "precision.mxfp8.group=32", "model.intermediate=40"},
                {"multiples of 32", "intermediate is 40"}},
        Refusal{kGood,
                {"precision.recipe=mxfp8", "precision.mxfp8.group=32", "model.intermediate=320", "device.kind=cuda"},
                {"multiples of 128", "intermediate is 320"}},
        Refusal{kGood, {"precision.recipe=mxfp8", "model.head_dim=40"}, {"heads x head_dim is 160", "mxfp8.attention"}},
        Refusal{kGood,
                {"precision.recipe=mxfp8", "precision.mxfp8.bf16_first=3", "precision.mxfp8.bf16_last=1"},
                {"none of 4 layers", "bf16_first"}},
        Refusal{"[device]\nkind = \"tpu\"\n", {}, {"tpu"}},
        Refusal{"[[data.mix]]\nstore = \"a\"\n", {}, {"data.mix", "not in this build"}},
        Refusal{"[[train]]\nsteps = 1\n", {}, {"[[train]]"}},
        Refusal{"steps = 1\n", {}, {"run.toml:1", "steps", "outside a section"}},
        Refusal{"[train\nsteps = 1\n", {}, {"run.toml:1", "not valid TOML"}},
        Refusal{"[train]\nsteps = 2026-01-01\n", {}, {"run.toml:2"}},
        Refusal{"[tr\xc3\xa4in]\nsteps = 1\n", {}, {"run.toml:1", "ASCII"}},
        Refusal{"[train]\nsteps\xff = 1\n", {}, {"run.toml:2", "ASCII"}},
        Refusal{"[train]\nsteps = \"\xff\xfe\"\n", {}, {"run.toml:2"}},
        Refusal{kGood, {"train.stps=3"}, {"--set train.stps=3", "did you mean 'steps'"}},
        Refusal{kGood, {"train.steps"}, {"--set train.steps", "section.key=value"}},
        Refusal{kGood, {"data.store=a\xff"}, {"0xff is not UTF-8", "--set data.store"}}, Refusal{"", {}, {"no model"}},
        Refusal{kGood, {"train.batch_tokens=100", "train.micro_batch_tokens=30"}, {"train.micro_batch_tokens = 30", "divisor"}},
        Refusal{kGood, {"train.tokens=0"}, {"no length"}},
        Refusal{kGood, {"optimizer.state_dtype=\"int4\""}, {"optimizer.state_dtype", "fp32, bf16, int8"}},
        Refusal{kGood, {"optimizer.masters=\"bf16\""}, {"optimizer.masters", "fp32, none"}},
        Refusal{kGood, {"data.context=1024"}, {"data.context = 1024", "model.context"}},
        Refusal{kGood, {"model.top_k=9"}, {"top_k", "8 experts"}}, Refusal{"[train]\nsteps = 1\n", {}, {"no model"}}));

TEST(Config, EveryKeyHasAnExplanationAndItsOwnPlace) {
  RunConfig config;
  std::vector<const void*> places;
  for (const Key& key : config_keys()) {
    EXPECT_FALSE(key.doc.empty()) << key.name;
    places.push_back(std::visit([](auto* p) -> const void* { return p; }, key.slot(config)));
  }
  std::ranges::sort(places);
  EXPECT_EQ(std::ranges::adjacent_find(places), places.end()) << "two keys share a member";
}

TEST(Config, CommentsAndStringsMayHoldAnyLetters) {
  EXPECT_EQ(resolved(std::string(kGood) + "# \xc3\xa4\n[device]\nthreads = 2 # \xe2\x82\xac\n").device.threads, 2);
  EXPECT_EQ(resolved(kGood, {"data.store=\"/d\xc3\xa4ta\""}).data.store, "/d\xc3\xa4ta");
}

}  // namespace
}  // namespace cistron::train
