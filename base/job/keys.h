#ifndef EPS_BASE_JOB_KEYS_H_
#define EPS_BASE_JOB_KEYS_H_

// The settings that define the bits of a job, and the one table of their keys. Each ...Keys
// function walks a section once, in the order of the canonical text, and calls a visitor for each
// key:
//
//   v->Key("data.order", &d->order, AnyValue(), "Order of the samples.");
//
// YAML, environment, flags, `eps config print`, the reference page, the canonical text and the
// range checks are visitors. A setting is added here and nowhere else: its field and its line. A
// line that was not there from the beginning is an OptionalKey, left out of the text for its usual
// value, so that the text and the digest of older jobs stay as they are.
//
// A visitor has Key(key, value, rule, help), OptionalKey(key, value, usual, rule, help) and
// Parameter(parameter, optimizer). Sections of the configuration derive from the types here, or
// leave a value open with Auto; the walks take both.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/job/key_rules.h"
#include "base/job/names.h"
#include "base/job/optimizers.h"
#include "base/numerics/loss_scale.h"

namespace eps {

// A value that may stay open until the job is created; nullopt is written "auto".
template <class T>
using Auto = std::optional<T>;

inline constexpr uint32_t kMaxParts = 1024;  // sums of 2^10 parts below 2^50 stay finite
inline constexpr uint64_t kMaxChunkElements = uint64_t{1} << 28;
inline constexpr size_t kMaxSpecialTokens = 256;

// ---- optimizer (base/job/schedule.h has lr_scheduler)

template <class V, class O>
void OptimizerKeys(V* v, O* o) {
  v->Key("optimizer.name", &o->name, AnyValue(), "The update rule.");
  v->Key("optimizer.lr", &o->lr, Reals(0.0, kMaxFactor),
         "Peak learning rate; auto means 0.001, or 0.00005 if training starts from the weights of "
         "model.path.");
  for (const OptimizerParameter* parameter : OptimizerParameters()) v->Parameter(*parameter, o);
}

// ---- training

enum class Mode { kEager, kSealed };
template <>
inline constexpr std::array<const char*, 2> kNames<Mode> = {"eager", "sealed"};

enum class Clip { kNone, kLagged, kExact };
template <>
inline constexpr std::array<const char*, 3> kNames<Clip> = {"none", "lagged", "exact"};

enum class Replay { kRollback };
template <>
inline constexpr std::array<const char*, 1> kNames<Replay> = {"rollback"};

// With a gradient that is not finite or not below 2^50, the job ends, or the step updates nothing.
enum class Nonfinite { kHalt, kSkip };
template <>
inline constexpr std::array<const char*, 2> kNames<Nonfinite> = {"halt", "skip"};

enum class Determinism { kStrict, kRelaxed };
template <>
inline constexpr std::array<const char*, 2> kNames<Determinism> = {"strict", "relaxed"};

// The element type of a stage's weights, activations and activation gradients. Weights at the
// servers, moments, sums of gradients and losses are FP32. kCmp is FP16 with a loss scale
// (constant mixed precision; L2L, section 4.2).
enum class Precision { kFp32, kBf16, kCmp };
template <>
inline constexpr std::array<const char*, 3> kNames<Precision> = {"fp32", "bf16", "cmp"};

// How a worker adds a part's micro-batches: along the tree of base/numerics/reduction_tree.h, or in
// their order.
enum class GradientSum { kTree, kFused };
template <>
inline constexpr std::array<const char*, 2> kNames<GradientSum> = {"tree", "fused"};

template <>
inline constexpr std::array<const char*, 2> kNames<LossScaling> = {"dynamic", "static"};

// The settings of training that are never open.
struct TrainingSettings {
  uint32_t micro_batch_size = 1;  // samples in a micro-batch
  uint32_t micro_batches = 1;     // g: micro-batches in a part
  uint32_t parts = 1;
  uint32_t seq_len = 256;  // T: tokens in a sample
  uint64_t seed = 42;
  Clip clip = Clip::kNone;
  double max_grad_norm = 1.0;  // of clip
  Nonfinite nonfinite = Nonfinite::kHalt;
  Replay replay = Replay::kRollback;
  Determinism determinism = Determinism::kStrict;
  uint32_t loss_block_tokens = 1024;  // the head computes loss and gradient in such blocks
  double label_smoothing = 0.0;       // the share of a label that is spread over all classes
  Precision precision = Precision::kFp32;
  LossScaleRule loss_scale;  // of precision cmp
  GradientSum gradient_sum = GradientSum::kTree;
};

// The training of a job, with nothing left open.
struct TrainingSpec : TrainingSettings {
  uint64_t steps = 0;
  Mode mode = Mode::kEager;
};

template <class V, class T>
void TrainingKeys(V* v, T* t) {
  v->Key("training.steps", &t->steps, Range(1, kMaxSteps),
         "Steps to train; auto means those of training.epochs, or 100.");
  v->Key("training.micro_batch_size", &t->micro_batch_size, Range(1, 1u << 16),
         "Sequences in one micro-batch.");
  v->Key("training.micro_batches", &t->micro_batches, Range(1, 1u << 16),
         "Micro-batches of one part in a step.");
  v->Key("training.parts", &t->parts, Range(1, kMaxParts),
         "Parts of a step, the units of contribution; 0 means one part per initial worker.");
  v->Key("training.seq_len", &t->seq_len, Range(1, 1u << 24),
         "Tokens of a sequence; 0 means the model's n_positions.");
  v->Key("training.seed", &t->seed, AnyValue(),
         "Seed of the initial weights, the data order and dropout.");
  v->Key("training.mode", &t->mode, AnyValue(),
         "When a server updates a chunk: once its gradient is complete (eager), or once the whole "
         "step is complete (sealed); auto chooses eager if clip and nonfinite allow it.");
  v->Key("training.clip", &t->clip, AnyValue(),
         "Clips the gradient by its own norm (exact), by the norm of the previous step (lagged), "
         "or not at all (none).");
  v->Key("training.max_grad_norm", &t->max_grad_norm, kPositive,
         "Largest gradient norm that clipping leaves unchanged.");
  v->OptionalKey("training.nonfinite", &t->nonfinite, Nonfinite::kHalt, AnyValue(),
                 "Reaction to a gradient that is NaN, infinite or not below 2^50: the job ends "
                 "(halt), or the step updates nothing (skip).");
  v->Key("training.replay", &t->replay, AnyValue(),
         "How an eager job recovers when it loses a worker in the middle of a step.");
  v->Key("training.determinism", &t->determinism, AnyValue(),
         "strict rejects a worker with another compute profile; relaxed accepts it.");
  v->Key("training.loss_block_tokens", &t->loss_block_tokens, Range(1, 1u << 24),
         "Tokens whose logits the head holds at once; affects the bits of the result.");
  v->OptionalKey("training.label_smoothing", &t->label_smoothing, 0.0, kBelowOne,
                 "Share of each label that is spread over all classes; evaluations do without. 0 "
                 "disables it.");
  v->OptionalKey("training.precision", &t->precision, Precision::kFp32, AnyValue(),
                 "Element type in which workers compute: fp32, bf16, or cmp: float16 with a loss "
                 "scale. An exported model has the one of its export (docs/models.md).");
  const LossScaleRule usual;
  v->OptionalKey("training.loss_scale", &t->loss_scale.scaling, usual.scaling, AnyValue(),
                 "With training.precision=cmp: the loss scale halves after overflows and doubles "
                 "after steps without one (dynamic), or stays (static).");
  v->OptionalKey("training.loss_scale_initial", &t->loss_scale.initial_log2, usual.initial_log2,
                 Range(0, kMaxLossScaleLog2),
                 "The first loss scale, of a micro-batch's mean loss, is 2 to this power.");
  v->OptionalKey("training.loss_scale_window", &t->loss_scale.window, usual.window,
                 Range(1, 1u << 30), "Steps without an overflow after which the scale doubles.");
  v->OptionalKey("training.loss_scale_hysteresis", &t->loss_scale.hysteresis, usual.hysteresis,
                 Range(1, 1000), "Overflows, since it doubled, from which on the scale halves.");
  v->OptionalKey(
      "training.gradient_sum", &t->gradient_sum, GradientSum::kTree, AnyValue(),
      "How a worker adds the gradients of a part's micro-batches: along a tree, with the "
      "same bits for any number of parts (tree), or all into one sum (fused).");
}

template <class V, class Number>  // a section of its own in the text
void ChunkKeys(V* v, Number* chunk_elements) {
  v->Key("training.chunk_elements", chunk_elements, Range(1, kMaxChunkElements),
         "Elements of a chunk; 0 derives the number from the model's size.");
}

// ---- data

enum class DataOrder { kSequential, kShuffled };
template <>
inline constexpr std::array<const char*, 2> kNames<DataOrder> = {"sequential", "shuffled"};

inline constexpr double kMlmProbability = 0.15;  // BERT's (Devlin et al., 2019)

// The data of a job, identified by its content.
struct DataSpec {
  DataOrder order = DataOrder::kShuffled;
  uint64_t tokens = 0;   // whole tokens in the data
  std::string sha256;    // of the tokens, or of all columns of rows (docs/formats/data.md)
  uint64_t samples = 0;  // rows of the data; 0: a stream, which training.seq_len cuts
  double mlm_probability = kMlmProbability;   // the share of the tokens that a model has to guess
  uint32_t mask_token = 0;                    // replaces most of them
  std::vector<uint32_t> special_tokens = {};  // are never among them; in increasing order
};

template <class V, class D>
void DataKeys(V* v, D* d) {
  v->Key("data.order", &d->order, AnyValue(), "Order of the samples.");
  v->OptionalKey("data.mlm_probability", &d->mlm_probability, kMlmProbability,
                 Reals(0.0, 1.0, Reals::Ends::kAboveLow),
                 "Share of the tokens that a masked language model has to guess "
                 "(docs/formats/data.md).");
  v->OptionalKey("data.mask_token", &d->mask_token, decltype(d->mask_token)(0), AnyValue(),
                 "Id that replaces tokens to guess; auto means that of the .epsd file.");
}

// ---- quantization

// Which weights the backward pass of a block codec computes with. The recomputation always fetches
// what the forward pass saw; the gradient of a stage's input contracts the other axis.
enum class BackwardWeights {
  kRecomputeAxis,  // what the forward pass saw, for both
  kBothAxes,       // the gradient of the input sees the weights quantized along its own axis
  kDecodeOnce,     // what the forward pass saw, rounded to bf16 on decoding; one copy serves all
};
template <>
inline constexpr std::array<const char*, 3> kNames<BackwardWeights> = {"recompute_axis",
                                                                       "both_axes", "decode_once"};

// Where the elements that a sparse codec left out wait.
enum class ResidualHome { kServer, kWorker };
template <>
inline constexpr std::array<const char*, 2> kNames<ResidualHome> = {"server", "worker"};

// Codecs by name, parameters included, as compression/codec.h finds them.
struct TensorCodecs {
  std::string weights = "fp32";
  std::string gradients = "fp32";
};

// How weights and gradients travel, as far as it is never open.
struct CodecSettings {
  std::string weights = "fp32";    // of the matrices of the inner stages
  std::string gradients = "fp32";  // likewise
  BackwardWeights backward_weights = BackwardWeights::kRecomputeAxis;
  uint64_t warmup_steps = 0;   // steps whose gradients all travel as kWarmupGradients, or exactly
  bool error_feedback = true;  // of codecs that drop elements
  ResidualHome residual_home = ResidualHome::kServer;
  std::string residual = "bf16";  // codec of the residuals on the wire and at their home
};
inline constexpr char kWarmupGradients[] = "bf16";

// base/job/layout/codec_table.h says which codec a tensor has in a step.
struct CodecSpec : CodecSettings {
  TensorCodecs embedding;      // matrices that the first stage uses
  TensorCodecs head;           // matrices that only the last stage uses
  TensorCodecs norm;           // rank 1: norms and biases
  std::string stash = "fp32";  // of stage inputs between forward and backward: fp32, bf16, fp8_…
};

// The codecs of one kind of tensor, left out of the text where they are fp32.
template <class V, class Codec>
void TensorCodecKey(V* v, const char* key, Codec* codec, const char* help) {
  v->OptionalKey(key, codec, Codec("fp32"), CodecName(), help);
}

template <class V, class C>
void CodecKeys(V* v, C* c) {
  const CodecSettings usual;
  v->Key("quantization.weights", &c->weights, CodecName(),
         "Codec of the weights on the wire (eps codec list), for the matrices of inner stages.");
  v->Key("quantization.gradients", &c->gradients, CodecName(),
         "Codec of the gradients on the wire, for the matrices of inner stages.");
  TensorCodecKey(
      v, "quantization.embedding_weights", &c->embedding.weights,
      "As quantization.weights, for the embeddings; auto means fp32 if that is fp32, else bf16.");
  TensorCodecKey(
      v, "quantization.embedding_gradients", &c->embedding.gradients,
      "As quantization.gradients, for the embeddings; auto means fp32 if that is fp32, else bf16.");
  TensorCodecKey(
      v, "quantization.head_weights", &c->head.weights,
      "As quantization.weights, for an untied head; auto means fp32 if that is fp32, else bf16.");
  TensorCodecKey(
      v, "quantization.head_gradients", &c->head.gradients,
      "As quantization.gradients, for an untied head; auto means fp32 if that is fp32, else bf16.");
  TensorCodecKey(v, "quantization.norm_weights", &c->norm.weights,
                 "As quantization.weights, for norms and biases; auto means fp32.");
  TensorCodecKey(v, "quantization.norm_gradients", &c->norm.gradients,
                 "As quantization.gradients, for norms and biases; auto means fp32.");
  v->OptionalKey("quantization.backward_weights", &c->backward_weights, usual.backward_weights,
                 AnyValue(),
                 "Weights that the backward pass computes with (docs/quantization.md).");
  v->OptionalKey("quantization.warmup_steps", &c->warmup_steps, usual.warmup_steps, AnyValue(),
                 "Number of initial steps that send all gradients dense.");
  v->OptionalKey("quantization.error_feedback", &c->error_feedback, usual.error_feedback,
                 AnyValue(),
                 "Adds the elements that topk omitted to the next gradient of the same part.");
  v->OptionalKey("quantization.residual_home", &c->residual_home, usual.residual_home, AnyValue(),
                 "Where the elements that topk omitted wait for the next gradient.");
  v->OptionalKey("quantization.residual", &c->residual, usual.residual, CodecName(),
                 "Codec of the elements that topk omitted, at their home and on the way there.");
}

template <class V, class Text>  // a key of the worker in the configuration
void StashKey(V* v, Text* stash) {
  v->OptionalKey("worker.stash_codec", stash, std::string("fp32"), CodecName(),
                 "Codec of the stage inputs in the stash: fp32, bf16, fp16, fp8_e4m3 or fp8_e5m2.");
}

}  // namespace eps

#endif  // EPS_BASE_JOB_KEYS_H_
