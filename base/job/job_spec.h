#ifndef EPS_BASE_JOB_JOB_SPEC_H_
#define EPS_BASE_JOB_JOB_SPEC_H_

// The job spec: everything that defines the bits of a training run, and nothing else. Immutable
// once a job exists; its SHA-256 is checked at every join and in every cut. It travels and is
// stored as canonical text (docs/formats/job_spec.md), so that a refusal can name the first line
// that differs and any language can write one.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/checksum.h"
#include "base/ids.h"

namespace eps {

// Raised whenever the same spec would give other bits than before.
inline constexpr int kNumericsVersion = 1;

// What a spec may ask for: a server can afford everything below these bounds, and no product of
// values within them overflows uint64.
inline constexpr uint64_t kMaxSpecTextBytes = uint64_t{16} << 20;
inline constexpr uint32_t kMaxTensors = 1u << 20;
inline constexpr uint32_t kMaxStages = 4096;
inline constexpr uint32_t kMaxStageUses = 1u << 20;  // over all stages
inline constexpr uint32_t kMaxGroups = 256;
inline constexpr uint32_t kMaxParts = 1024;  // sums of 2^10 parts below 2^50 stay finite
inline constexpr uint32_t kMaxTensorCols = 1u << 23;
inline constexpr uint64_t kMaxElements = uint64_t{1} << 48;  // over all tensors
inline constexpr uint64_t kMaxChunkElements = uint64_t{1} << 28;
inline constexpr uint64_t kMaxChunks = uint64_t{1} << 22;

// Hugging Face's GPT2Config fields, by their names there.
struct Gpt2Config {
  int n_layer = 6;
  int n_head = 8;
  int n_embd = 256;
  int n_inner = 0;  // 0: 4 * n_embd
  int n_positions = 256;
  int vocab_size = 256;
  bool tie_word_embeddings = true;
  double resid_pdrop = 0.0;
  double embd_pdrop = 0.0;
  double attn_pdrop = 0.0;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
};

// A model without LibTorch: `n_layer` square layers of width `n_embd`, its gradients a pure
// function of (weights, step, part). For tests of the protocol.
struct SyntheticConfig {
  int n_layer = 4;
  int n_embd = 64;
  bool tied = true;  // first and last stage share one tensor
};

enum class ModelType { kGpt2, kSynthetic };

struct ModelSpec {
  ModelType type = ModelType::kGpt2;
  Gpt2Config gpt2;            // meaningful if type == kGpt2
  SyntheticConfig synthetic;  // meaningful if type == kSynthetic
};

enum class Initializer { kZeros, kOnes, kNormal };

struct TensorSpec {
  std::string name;   // the Hugging Face name, e.g. "transformer.h.0.attn.c_attn.weight"
  uint32_t rank = 2;  // 1 or 2
  uint32_t rows = 0;  // 1 for rank 1
  uint32_t cols = 0;
  GroupId group;
  Initializer init = Initializer::kNormal;
  double init_std = 0.0;  // of kNormal

  uint64_t elements() const { return uint64_t{rows} * cols; }
};

// Which axis of the stored tensor a pass contracts (blocks of block codecs run along it).
enum class Axis { kRow, kColumn };  // kRow: blocks run along a row (the last dimension)

struct TensorUse {
  TensorId tensor;
  Axis forward_axis = Axis::kColumn;
  Axis backward_axis = Axis::kRow;
};

// One position of the relay: embedding, block 0 … n-1, head.
struct StageSpec {
  std::string name;
  std::vector<TensorUse> uses;  // each tensor at most once
};

struct ParameterGroup {
  std::string name;
  double weight_decay = 0.0;
};

enum class OptimizerName { kAdamW, kSgd };
// The numbers that are not of `name` keep their defaults, so that equal text means equal specs.
struct OptimizerSpec {
  OptimizerName name = OptimizerName::kAdamW;
  double lr = 1e-3;
  double beta1 = 0.9;     // of AdamW
  double beta2 = 0.999;   // of AdamW
  double eps = 1e-8;      // of AdamW
  double momentum = 0.0;  // of SGD; 0: no momentum buffer
};

struct ScheduleSpec {
  std::string name = "constant";  // see base/job/schedule.h
  uint64_t warmup_steps = 0;
  double min_lr_ratio = 0.0;  // where cosine_with_min_lr and the like end
  double num_cycles = 0.5;    // cosine
  double power = 1.0;         // polynomial
};

enum class Mode { kEager, kSealed };
enum class Clip { kNone, kLagged, kExact };
enum class Replay { kRollback };
// What becomes of a step in which a gradient is not finite or not below 2^50: the job ends, or the
// step updates nothing (the next one has its own data and the same weights).
enum class Nonfinite { kHalt, kSkip };
enum class Determinism { kStrict, kRelaxed };
enum class DataOrder { kSequential, kShuffled };

struct TrainingSpec {
  uint64_t steps = 0;
  uint32_t micro_batch_size = 1;  // samples in a micro-batch
  uint32_t micro_batches = 1;     // g: micro-batches in a part
  uint32_t parts = 1;
  uint32_t seq_len = 256;  // T: tokens in a sample
  uint64_t seed = 42;
  Mode mode = Mode::kEager;
  Clip clip = Clip::kNone;
  double max_grad_norm = 1.0;  // of clip
  Nonfinite nonfinite = Nonfinite::kHalt;
  Replay replay = Replay::kRollback;
  Determinism determinism = Determinism::kStrict;
  uint32_t loss_block_tokens = 1024;  // the head's loss and gradient are computed in such blocks
};

struct DataSpec {
  DataOrder order = DataOrder::kShuffled;
  uint64_t tokens = 0;  // whole tokens in the data
  std::string sha256;   // of the tokens as little-endian uint16
};

// Codecs by name, parameters included, as compression/codec.h finds them.
struct TensorCodecs {
  std::string weights = "fp32";
  std::string gradients = "fp32";
};

// Which weights the backward pass of a block codec computes with. What forward saw is fetched again
// for the recomputation in every case; the gradient of a stage's input contracts the other axis.
enum class BackwardWeights {
  kRecomputeAxis,  // what forward saw, for both
  kBothAxes,       // the gradient of the input sees the weights quantized along its own axis
  kDecodeOnce,     // what forward saw, rounded to bf16 where it is decoded; one copy serves all
};

// Where what a sparse codec left out waits for the next step (PROTOCOL.md section 7).
enum class ResidualHome { kServer, kWorker };

// How weights and gradients travel. `weights` and `gradients` are those of the matrices of the
// inner stages; base/job/codec_table.h says which codec a tensor has in a step.
struct CodecSpec {
  std::string weights = "fp32";
  std::string gradients = "fp32";
  TensorCodecs embedding;  // matrices that the first stage uses
  TensorCodecs head;       // matrices of the last stage alone
  TensorCodecs norm;       // rank 1: norms and biases
  BackwardWeights backward_weights = BackwardWeights::kRecomputeAxis;
  uint64_t warmup_steps = 0;   // steps whose gradients all travel as kWarmupGradients, or exactly
  bool error_feedback = true;  // of codecs that drop elements
  ResidualHome residual_home = ResidualHome::kServer;
  std::string residual = "bf16";  // codec of the residuals on the wire and at their home
  std::string stash = "fp32";  // of stage inputs between forward and backward: fp32, bf16, fp8_…
};
inline constexpr char kWarmupGradients[] = "bf16";

struct JobSpec {
  std::string name;  // tells apart runs of equal settings
  ModelSpec model;
  std::vector<ParameterGroup> groups;
  std::vector<TensorSpec> tensors;
  std::vector<StageSpec> stages;  // in relay order; uses of a tensor are reduced in this order
  uint64_t chunk_elements = 0;    // target size of a chunk; never 0 in a valid spec
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  TrainingSpec training;
  DataSpec data;
  CodecSpec codecs;
  int numerics_version = kNumericsVersion;

  uint64_t total_elements() const;
  uint64_t samples_per_step() const {
    return uint64_t{training.micro_batch_size} * training.micro_batches * training.parts;
  }
  uint64_t tokens_per_step() const { return samples_per_step() * training.seq_len; }

  // Canonical text: "key = value" lines in a fixed order, floats as the shortest decimal that
  // reads back to the same double. Equal specs give equal text and equal text equal specs.
  std::string ToText() const;
  // Accepts only what ToText gives (any deviation is named with its line) and validates it.
  static absl::StatusOr<JobSpec> Parse(absl::string_view text);
  // Every rule a server relies on: sizes within limits, no overflow, ids in range, each tensor
  // used, legal mode. InvalidArgument names the key.
  absl::Status Validate() const;
  Sha256Digest Digest() const;  // of ToText()
  JobId id() const;             // first 8 bytes of Digest(), big-endian
};

// Bounds of the model's own numbers, as Validate applies them. InvalidArgument names the key.
absl::Status ValidateModel(const ModelSpec& model);

// "training.seed: 1 there, 2 here": the first line in which two canonical texts differ; empty if
// none does.
std::string FirstDifference(absl::string_view theirs, absl::string_view ours);

// Names as they stand in the text and the configuration.
const char* ModeName(Mode mode);
const char* ClipName(Clip clip);
const char* DataOrderName(DataOrder order);
const char* OptimizerNameText(OptimizerName name);
const char* ReplayName(Replay replay);
const char* NonfiniteName(Nonfinite nonfinite);
const char* DeterminismName(Determinism determinism);
const char* ModelTypeName(ModelType type);
const char* BackwardWeightsName(BackwardWeights backward_weights);
const char* ResidualHomeName(ResidualHome home);

}  // namespace eps

#endif  // EPS_BASE_JOB_JOB_SPEC_H_
