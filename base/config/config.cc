#include "base/config/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "yaml-cpp/yaml.h"

namespace eps {
namespace {

// A value as it was written: one text, or the items of a YAML sequence.
struct Value {
  std::string text;
  std::vector<std::string> items;
  bool is_list = false;
};

std::string Shown(const Value& value) {
  if (value.is_list) return absl::StrCat("a list of ", value.items.size());
  return absl::StrCat("\"", value.text, "\"");
}

absl::Status Expected(absl::string_view what, const Value& value) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", found ", Shown(value)));
}

// Plain where YAML reads the plain form back as the same text, else quoted.
std::string QuotedText(const std::string& text) {
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '/' || c == '-';
  };
  const std::string lower = absl::AsciiStrToLower(text);
  if (!text.empty() && text[0] != '-' && lower != "null" &&
      std::all_of(text.begin(), text.end(), is_plain)) {
    return text;
  }
  static constexpr char kHex[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (absl::ascii_iscntrl(c)) {
      quoted += {'\\', 'x', kHex[(c >> 4) & 15], kHex[c & 15]};
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

struct Text {
  static constexpr const char* kType = "text";
  static absl::Status Parse(const Value& value, std::string* out) {
    if (value.is_list) return Expected("text", value);
    *out = value.text;
    return absl::OkStatus();
  }
  static std::string Print(const std::string& text) { return QuotedText(text); }
};

// A text that may also be written as a YAML list of addresses.
struct Addresses : Text {
  static absl::Status Parse(const Value& value, std::string* out) {
    *out = value.is_list ? absl::StrJoin(value.items, ",") : value.text;
    return absl::OkStatus();
  }
};

// Never negative: no key counts or sizes anything below zero.
struct Integer {
  static constexpr const char* kType = "integer";
  template <typename T>
  static absl::Status Parse(const Value& value, T* out) {
    constexpr T kMax = std::numeric_limits<T>::max();
    uint64_t parsed = 0;
    if (value.is_list || !absl::SimpleAtoi(value.text, &parsed) ||
        parsed > static_cast<uint64_t>(kMax)) {
      return Expected(absl::StrCat("an integer from 0 to ", kMax), value);
    }
    *out = static_cast<T>(parsed);
    return absl::OkStatus();
  }
  template <typename T>
  static std::string Print(T integer) {
    return absl::StrCat(integer);
  }
};

struct Number {
  static constexpr const char* kType = "number";
  static absl::Status Parse(const Value& value, double* out) {
    double parsed = 0;
    if (value.is_list || !absl::SimpleAtod(value.text, &parsed) || !std::isfinite(parsed)) {
      return Expected("a finite number", value);
    }
    *out = parsed;
    return absl::OkStatus();
  }
  // The shortest text that reads back as the same bits.
  static std::string Print(double number) {
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof(text), number).ptr);
  }
};

struct Flag {
  static constexpr const char* kType = "flag";
  static absl::Status Parse(const Value& value, bool* out) {
    if (value.is_list || (value.text != "true" && value.text != "false")) {
      return Expected("true or false", value);
    }
    *out = value.text == "true";
    return absl::OkStatus();
  }
  static std::string Print(bool flag) { return flag ? "true" : "false"; }
};

struct Unit {
  absl::string_view name;
  uint64_t factor;
};

// Parses "1.5GiB" into whole base units, rounded down; at most six decimals. False: not a number
// followed by one of `units`, or too large for `limit`.
bool ParseWithUnit(absl::string_view text, const Unit* begin, const Unit* end, uint64_t limit,
                   uint64_t* out) {
  const size_t number_end = std::min(text.find_first_not_of("0123456789."), text.size());
  const absl::string_view suffix = absl::StripAsciiWhitespace(text.substr(number_end));
  const Unit* unit = std::find_if(begin, end, [&](const Unit& u) { return u.name == suffix; });
  if (unit == end) return false;
  const absl::string_view number = text.substr(0, number_end);
  const size_t point = std::min(number.find('.'), number.size());
  uint64_t whole = 0;
  if (!absl::SimpleAtoi(number.substr(0, point), &whole) || whole > limit / unit->factor) {
    return false;
  }
  uint64_t part = 0;
  if (point < number.size()) {
    std::string decimals(number.substr(point + 1));
    if (decimals.empty() || decimals.size() > 6) return false;
    decimals.resize(6, '0');
    if (!absl::SimpleAtoi(decimals, &part)) return false;
    part = part * unit->factor / 1'000'000;  // factors stay below 2^43: no overflow
  }
  *out = whole * unit->factor + part;
  return *out <= limit && *out >= part;
}

struct Size {
  static constexpr const char* kType = "size";
  static constexpr uint64_t kGiB = uint64_t{1} << 30;
  static constexpr Unit kUnits[] = {{"", 1},
                                    {"B", 1},
                                    {"KiB", 1 << 10},
                                    {"MiB", 1 << 20},
                                    {"GiB", kGiB},
                                    {"TiB", kGiB << 10},
                                    {"kB", 1'000},
                                    {"KB", 1'000},
                                    {"MB", 1'000'000},
                                    {"GB", 1'000'000'000},
                                    {"TB", 1'000'000'000'000}};
  static absl::Status Parse(const Value& value, uint64_t* out) {
    uint64_t bytes = 0;
    if (value.is_list || !ParseWithUnit(value.text, std::begin(kUnits), std::end(kUnits),
                                        std::numeric_limits<uint64_t>::max(), &bytes)) {
      return Expected("a size such as 16GiB, 500MB or a number of bytes", value);
    }
    *out = bytes;
    return absl::OkStatus();
  }
  static std::string Print(uint64_t bytes) {
    if (bytes != 0 && bytes % kGiB == 0) return absl::StrCat(bytes / kGiB, "GiB");
    return absl::StrCat(bytes);
  }
};

// Milliseconds. The unit must be written: a bare "60" would be read as seconds by some and as
// milliseconds by others.
struct Duration {
  static constexpr const char* kType = "duration";
  static constexpr Unit kUnits[] = {{"ms", 1}, {"s", 1'000}, {"m", 60'000}, {"h", 3'600'000}};
  static absl::Status Parse(const Value& value, int64_t* out) {
    uint64_t ms = 0;
    if (value.is_list || !ParseWithUnit(value.text, std::begin(kUnits), std::end(kUnits),
                                        std::numeric_limits<int64_t>::max(), &ms)) {
      return Expected("a duration such as 500ms, 30s, 5m or 1h", value);
    }
    *out = static_cast<int64_t>(ms);
    return absl::OkStatus();
  }
  static std::string Print(int64_t ms) {
    if (ms % 1'000 == 0) return absl::StrCat(ms / 1'000, "s");
    return absl::StrCat(ms, "ms");
  }
};

// The items of "[a, b]" or "a,b"; none of "" and "[]". Quotes count only inside brackets.
absl::Status ItemsOf(const Value& value, std::vector<std::string>* items) {
  items->clear();
  if (value.is_list) {
    *items = value.items;
    return absl::OkStatus();
  }
  const absl::string_view text = absl::StripAsciiWhitespace(value.text);
  if (text.empty()) return absl::OkStatus();
  if (text.front() != '[') {
    for (absl::string_view item : absl::StrSplit(text, ',')) {
      items->emplace_back(absl::StripAsciiWhitespace(item));
    }
    return absl::OkStatus();
  }
  try {
    for (const YAML::Node& item : YAML::Load(std::string(text))) {
      if (!item.IsScalar()) return Expected("a list of plain values", value);
      items->push_back(item.Scalar());
    }
  } catch (const YAML::Exception&) {
    return Expected("a list such as [a, b] or a,b", value);
  }
  return absl::OkStatus();
}

template <typename Item>
struct List {
  static constexpr const char* kType = "list";
  template <typename T>
  static absl::Status Parse(const Value& value, std::vector<T>* out) {
    std::vector<std::string> items;
    EPS_RETURN_IF_ERROR(ItemsOf(value, &items));
    std::vector<T> parsed(items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      EPS_RETURN_IF_ERROR(Item::Parse(Value{items[i], {}, false}, &parsed[i]));
    }
    *out = std::move(parsed);
    return absl::OkStatus();
  }
  template <typename T>
  static std::string Print(const std::vector<T>& list) {
    return absl::StrCat(
        "[",
        absl::StrJoin(list, ", ",
                      [](std::string* out, const T& item) { out->append(Item::Print(item)); }),
        "]");
  }
};

struct Key {
  absl::string_view name;
  const char* type;
  const char* help;
  absl::Status (*parse)(const Value&, Config*);
  std::string (*print)(const Config&);
};

template <typename Kind, auto kSection, auto kMember>
constexpr Key MakeKey(absl::string_view name, const char* help) {
  return {name, Kind::kType, help,
          [](const Value& value, Config* config) {
            return Kind::Parse(value, &((config->*kSection).*kMember));
          },
          [](const Config& config) { return Kind::Print((config.*kSection).*kMember); }};
}

using C = Config;
using Training = TrainingConfig;
using Scheduler = LrSchedulerConfig;
using Quantization = QuantizationConfig;

// The one table: a key that does not stand here does not exist.
constexpr Key kKeys[] = {
    MakeKey<Text, &C::model, &ModelConfig::path>(
        "model.path", "Folder with config.json, or a config.json; empty: the quickstart model."),
    MakeKey<List<Text>, &C::data, &DataConfig::path>(
        "data.path", "Text files, or one flat .bin file of uint16 tokens."),
    MakeKey<Text, &C::data, &DataConfig::order>("data.order", "shuffled or sequential."),
    MakeKey<List<Text>, &C::data, &DataConfig::eval_path>(
        "data.eval_path", "Held-out data of evaluations, as data.path; empty: none."),
    MakeKey<Integer, &C::training, &Training::steps>("training.steps", "Steps to train."),
    MakeKey<Integer, &C::training, &Training::micro_batch_size>("training.micro_batch_size",
                                                                "Sequences in one micro-batch."),
    MakeKey<Integer, &C::training, &Training::micro_batches>(
        "training.micro_batches", "Micro-batches of one part in a step."),
    MakeKey<Integer, &C::training, &Training::parts>(
        "training.parts",
        "Parts of a step, the unit of contribution; 0: the number of workers at the start."),
    MakeKey<Integer, &C::training, &Training::train_batch_size>(
        "training.train_batch_size",
        "Sequences in a step; 0: micro_batch_size * micro_batches * parts, else checked."),
    MakeKey<Integer, &C::training, &Training::seq_len>(
        "training.seq_len", "Tokens of a sequence; 0: the model's n_positions."),
    MakeKey<Integer, &C::training, &Training::seed>(
        "training.seed", "Seed of the initial weights, the data order and dropout."),
    MakeKey<Text, &C::training, &Training::clip>(
        "training.clip", "exact, lagged (by the norm of the step before) or none."),
    MakeKey<Number, &C::training, &Training::max_grad_norm>(
        "training.max_grad_norm", "Largest gradient norm that clipping leaves alone."),
    MakeKey<Text, &C::training, &Training::mode>(
        "training.mode", "auto, eager or sealed: when the server updates a chunk."),
    MakeKey<Text, &C::training, &Training::nonfinite>(
        "training.nonfinite",
        "halt or skip: what becomes of a step with a gradient that is NaN, infinite or not below "
        "2^50."),
    MakeKey<Text, &C::training, &Training::replay>(
        "training.replay", "What an eager job does about a worker lost in mid-step: rollback."),
    MakeKey<Text, &C::training, &Training::determinism>(
        "training.determinism",
        "strict refuses a worker with another compute profile; relaxed admits it."),
    MakeKey<Integer, &C::training, &Training::loss_block_tokens>(
        "training.loss_block_tokens", "Tokens whose logits the head holds at once; defines bits."),
    MakeKey<Integer, &C::training, &Training::chunk_elements>(
        "training.chunk_elements", "Elements of a chunk; 0: chosen from the model's size."),
    MakeKey<Integer, &C::training, &Training::eval_steps>(
        "training.eval_steps",
        "Steps between evaluations on data.eval_path, and one after the last step; 0: never."),
    MakeKey<Integer, &C::training, &Training::eval_samples>(
        "training.eval_samples", "Held-out samples of an evaluation; 0: all whole ones."),
    MakeKey<Text, &C::optimizer, &OptimizerConfig::name>("optimizer.name",
                                                         "The update rule: adamw or sgd."),
    MakeKey<Number, &C::optimizer, &OptimizerConfig::lr>("optimizer.lr", "Peak learning rate."),
    MakeKey<List<Number>, &C::optimizer, &OptimizerConfig::betas>(
        "optimizer.betas", "adamw: decay of the first and second moment."),
    MakeKey<Number, &C::optimizer, &OptimizerConfig::eps>(
        "optimizer.eps", "adamw: added to the denominator of the update."),
    MakeKey<Number, &C::optimizer, &OptimizerConfig::momentum>(
        "optimizer.momentum", "sgd: decay of the momentum buffer; 0 keeps none."),
    MakeKey<Number, &C::optimizer, &OptimizerConfig::weight_decay>(
        "optimizer.weight_decay",
        "Weight decay of matrices: decoupled for adamw, part of the gradient for sgd."),
    MakeKey<Text, &C::lr_scheduler, &Scheduler::name>(
        "lr_scheduler.name", "Learning rate schedule, by its Hugging Face name."),
    MakeKey<Integer, &C::lr_scheduler, &Scheduler::warmup_steps>("lr_scheduler.warmup_steps",
                                                                 "Steps of linear warm-up."),
    MakeKey<Number, &C::lr_scheduler, &Scheduler::min_lr_ratio>(
        "lr_scheduler.min_lr_ratio", "Lowest learning rate as a fraction of optimizer.lr."),
    MakeKey<Number, &C::lr_scheduler, &Scheduler::num_cycles>("lr_scheduler.num_cycles",
                                                              "Waves of the cosine schedules."),
    MakeKey<Number, &C::lr_scheduler, &Scheduler::power>("lr_scheduler.power",
                                                         "Exponent of the polynomial schedule."),
    MakeKey<Text, &C::quantization, &Quantization::weights>(
        "quantization.weights",
        "Codec of the weights on the wire (eps codec list), of the matrices of inner stages."),
    MakeKey<Text, &C::quantization, &Quantization::gradients>(
        "quantization.gradients",
        "Codec of the gradients on the wire, of the matrices of inner stages."),
    MakeKey<Text, &C::quantization, &Quantization::embedding_weights>(
        "quantization.embedding_weights",
        "As quantization.weights, of the embeddings; auto: fp32 if that is fp32, else bf16."),
    MakeKey<Text, &C::quantization, &Quantization::embedding_gradients>(
        "quantization.embedding_gradients",
        "As quantization.gradients, of the embeddings; auto: fp32 if that is fp32, else bf16."),
    MakeKey<Text, &C::quantization, &Quantization::head_weights>(
        "quantization.head_weights",
        "As quantization.weights, of an untied head; auto: fp32 if that is fp32, else bf16."),
    MakeKey<Text, &C::quantization, &Quantization::head_gradients>(
        "quantization.head_gradients",
        "As quantization.gradients, of an untied head; auto: fp32 if that is fp32, else bf16."),
    MakeKey<Text, &C::quantization, &Quantization::norm_weights>(
        "quantization.norm_weights", "As quantization.weights, of norms and biases; auto: fp32."),
    MakeKey<Text, &C::quantization, &Quantization::norm_gradients>(
        "quantization.norm_gradients",
        "As quantization.gradients, of norms and biases; auto: fp32."),
    MakeKey<Text, &C::quantization, &Quantization::rounding>(
        "quantization.rounding", "Of mx9, mx6 and mx4: nearest or truncate."),
    MakeKey<Text, &C::quantization, &Quantization::backward_weights>(
        "quantization.backward_weights",
        "recompute_axis, both_axes or decode_once: what backward computes with "
        "(docs/quantization.md)."),
    MakeKey<Integer, &C::quantization, &Quantization::warmup_steps>(
        "quantization.warmup_steps", "First steps, whose gradients all travel dense."),
    MakeKey<Text, &C::quantization, &Quantization::index>(
        "quantization.index", "How topk writes which elements it sends: packed or raw32."),
    MakeKey<Text, &C::quantization, &Quantization::selection>(
        "quantization.selection",
        "How topk chooses: exact, or sampled (a threshold from a sample)."),
    MakeKey<Text, &C::quantization, &Quantization::scope>(
        "quantization.scope",
        "Among which elements topk chooses: those of a chunk, or of a tensor."),
    MakeKey<Flag, &C::quantization, &Quantization::error_feedback>(
        "quantization.error_feedback",
        "Adds what topk left out to the next gradient of the same part."),
    MakeKey<Text, &C::quantization, &Quantization::residual_home>(
        "quantization.residual_home", "Where what topk left out waits: server or worker."),
    MakeKey<Text, &C::quantization, &Quantization::residual>(
        "quantization.residual", "Codec of what topk left out, at its home and on the way there."),
    MakeKey<Text, &C::storage, &StorageConfig::kind>(
        "storage.kind",
        "Where a server keeps weights and optimizer state: dram, or nvme. On nvme, and in dram "
        "with "
        "a storage.path, they survive its process."),
    MakeKey<Text, &C::storage, &StorageConfig::path>(
        "storage.path",
        "Folder of the storage of one server; eps train gives each server that it starts a folder "
        "in it. Empty: with nvme, state in checkpoint.dir; with dram, nothing is written."),
    MakeKey<Size, &C::storage, &StorageConfig::staging>(
        "storage.staging", "Memory of a server for chunks on their way from and to its disk."),
    MakeKey<Text, &C::storage, &StorageConfig::cut_steps>(
        "storage.cut_steps",
        "Steps between cuts, from which a job goes on after a crash; auto: so many that they cost "
        "at most 1 % of the time; 0: one behind the last step only."),
    MakeKey<Text, &C::storage, &StorageConfig::log>(
        "storage.log",
        "contributions: what counts is logged before it is acknowledged, so that a server that "
        "died comes back to where it stood and nobody goes back to a cut; none."),
    MakeKey<Flag, &C::storage, &StorageConfig::reopen>(
        "storage.reopen",
        "A server that starts opens the job again that it served when it ended, for the same "
        "servers.addresses."),
    MakeKey<Integer, &C::storage, &StorageConfig::max_restarts>(
        "storage.max_restarts",
        "How often eps train starts servers and workers again that were killed, if their job goes "
        "on from a cut; 0: the run ends."),
    MakeKey<Size, &C::storage, &StorageConfig::scrub>(
        "storage.scrub",
        "Bytes per second at which a server reads its cuts again and checks them; 0: never."),
    MakeKey<Text, &C::checkpoint, &CheckpointConfig::dir>(
        "checkpoint.dir", "Output folder of checkpoints and logs; empty: none are written."),
    MakeKey<Text, &C::checkpoint, &CheckpointConfig::resume>(
        "checkpoint.resume", "none, latest or a checkpoint folder."),
    MakeKey<Integer, &C::checkpoint, &CheckpointConfig::save_steps>(
        "checkpoint.save_steps", "Steps between checkpoints; 0: only at the end."),
    MakeKey<Integer, &C::checkpoint, &CheckpointConfig::save_total_limit>(
        "checkpoint.save_total_limit",
        "Checkpoints kept in checkpoint.dir, the oldest go first; 0: all."),
    MakeKey<Addresses, &C::servers, &ServersConfig::addresses>(
        "servers.addresses", "2: start two servers; host:port,host:port: attach to running ones."),
    MakeKey<Text, &C::servers, &ServersConfig::listen>(
        "servers.listen", "Address that eps serve listens on; port 0: any free one."),
    MakeKey<Text, &C::servers, &ServersConfig::metrics>(
        "servers.metrics",
        "Address of eps serve's Prometheus metrics (GET /metrics); port 0: any free one; empty: "
        "none."),
    MakeKey<Text, &C::servers, &ServersConfig::trace>(
        "servers.trace",
        "Folder to which servers append what the protocol does, a line each, for checks; empty: "
        "none."),
    MakeKey<Integer, &C::servers, &ServersConfig::threads>(
        "servers.threads", "Threads of a server for reduction and update."),
    MakeKey<Size, &C::servers, &ServersConfig::memory_limit>(
        "servers.memory_limit", "Memory that a server may use; 0: what the machine has free."),
    MakeKey<Flag, &C::servers, &ServersConfig::insecure>(
        "servers.insecure", "Permits servers.listen on an address that is not loopback."),
    MakeKey<Duration, &C::servers, &ServersConfig::worker_timeout_ms>(
        "servers.worker_timeout", "A part that is gone for longer ends an eager job."),
    MakeKey<Integer, &C::servers, &ServersConfig::jit_depth>(
        "servers.jit_depth",
        "Stages whose weights a server quantizes ahead of the first fetch: 1, or 2 against jitter; "
        "0: none."),
    MakeKey<Text, &C::worker, &WorkerConfig::device>("worker.device", "auto, cpu, cuda or cuda:N."),
    MakeKey<Text, &C::worker, &WorkerConfig::stash>(
        "worker.stash", "Where stage inputs wait for the backward pass: host or device."),
    MakeKey<Text, &C::worker, &WorkerConfig::stash_codec>(
        "worker.stash_codec",
        "How stage inputs wait there: fp32, bf16, fp16, fp8_e4m3 or fp8_e5m2."),
    MakeKey<Integer, &C::worker, &WorkerConfig::threads>(
        "worker.threads", "Threads of a worker's computation; 0: all cores."),
    MakeKey<Integer, &C::worker, &WorkerConfig::prefetch>("worker.prefetch",
                                                          "Stages fetched ahead; 0: none."),
    MakeKey<Integer, &C::worker, &WorkerConfig::count>("worker.count", "Workers of the job."),
    MakeKey<Integer, &C::worker, &WorkerConfig::rank>("worker.rank",
                                                      "Which of the workers this one is, from 0."),
    MakeKey<Duration, &C::worker, &WorkerConfig::pass_time_ms>(
        "worker.pass_time",
        "For measurements, of a model of type eps-synthetic: least time of a forward pass of one "
        "micro-batch over a stage, waited out; a backward pass takes three times that; 0: none."),
    MakeKey<Duration, &C::worker, &WorkerConfig::rpc_timeout_ms>(
        "worker.rpc_timeout", "Longest wait of a worker for one answer of a server."),
    MakeKey<Integer, &C::metrics, &MetricsConfig::log_every_steps>(
        "metrics.log_every_steps", "Steps between two progress lines."),
    MakeKey<Flag, &C::metrics, &MetricsConfig::tensorboard>(
        "metrics.tensorboard", "TensorBoard event files in <checkpoint.dir>/tensorboard."),
    MakeKey<Text, &C::metrics, &MetricsConfig::hardware>(
        "metrics.hardware",
        "Description of the machines (`eps bench calibrate`, docs/reference/hardware.md): `eps "
        "train` then says what it plans, and at the end how that compares with what it took."),
};

struct Alias {
  absl::string_view name;
  absl::string_view key;
};

// Names that users know from elsewhere, and short forms. A bare section name stands for the key
// that a scalar in its place means, as in `servers: 2`.
constexpr Alias kAliases[] = {
    {"gradient_accumulation_steps", "training.micro_batches"},
    {"training.gradient_accumulation_steps", "training.micro_batches"},
    {"gradient_clipping", "training.max_grad_norm"},
    {"training.gradient_clipping", "training.max_grad_norm"},
    {"training.max_seq_len", "training.seq_len"},
    {"eval_steps", "training.eval_steps"},
    {"servers", "servers.addresses"},
};

std::string Normalized(absl::string_view key) { return absl::StrReplaceAll(key, {{"-", "_"}}); }

std::string UnknownKeyMessage(absl::string_view name) {
  std::vector<std::string> names;
  std::vector<std::string> same_leaf;
  const absl::string_view leaf = name.substr(std::min(name.rfind('.') + 1, name.size()));
  for (const Key& key : kKeys) {
    names.emplace_back(key.name);
    if (absl::EndsWith(key.name, absl::StrCat(".", leaf))) same_leaf.emplace_back(key.name);
  }
  for (const Alias& alias : kAliases) names.emplace_back(alias.name);
  const std::string nearest = NearestName(name, names);
  const std::string message = absl::StrCat(name, " is not a configuration key");
  // The right name in a wrong section is a likelier slip than two names that look alike.
  if (!same_leaf.empty()) {
    return absl::StrCat(message, "; did you mean ", absl::StrJoin(same_leaf, " or "), "?");
  }
  if (!nearest.empty()) return absl::StrCat(message, "; did you mean ", nearest, "?");
  return absl::StrCat(message, "; eps config reference lists them all");
}

absl::StatusOr<const Key*> FindKey(absl::string_view written) {
  const std::string normalized = Normalized(written);
  absl::string_view name = normalized;
  for (const Alias& alias : kAliases) {
    if (alias.name == normalized) name = alias.key;
  }
  for (const Key& key : kKeys) {
    if (key.name == name) return &key;
  }
  return absl::InvalidArgumentError(UnknownKeyMessage(normalized));
}

absl::Status SetKey(const Key& key, const Value& value, Config* config) {
  const absl::Status status = key.parse(value, config);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(key.name, ": ", status.message()));
}

bool IsSection(absl::string_view name) {
  const std::string prefix = absl::StrCat(name, ".");
  return std::any_of(std::begin(kKeys), std::end(kKeys),
                     [&](const Key& key) { return absl::StartsWith(key.name, prefix); });
}

// Merges one YAML document into a configuration, and remembers which line set which key.
class YamlMerge {
 public:
  YamlMerge(absl::string_view origin, Config* config) : origin_(origin), config_(config) {}

  absl::Status Merge(const YAML::Node& root) {
    if (root.IsNull()) return absl::OkStatus();
    if (!root.IsMap()) {
      return Error(root, "expected sections of keys such as \"training:\", found something else");
    }
    for (const auto& entry : root) {
      EPS_ASSIGN_OR_RETURN(const std::string name, NameOf(entry.first));
      if (IsSection(name) && (entry.second.IsMap() || entry.second.IsNull())) {
        EPS_RETURN_IF_ERROR(MergeSection(name, entry.first, entry.second));
      } else {
        EPS_RETURN_IF_ERROR(MergeKey(name, entry.first, entry.second));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Error(const YAML::Node& node, absl::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat(origin_, ":", LineOf(node), ": ", message));
  }

 private:
  static int LineOf(const YAML::Node& node) { return node.Mark().line + 1; }

  absl::StatusOr<std::string> NameOf(const YAML::Node& node) const {
    if (!node.IsScalar()) return Error(node, "a key must be a plain name");
    return Normalized(node.Scalar());
  }

  absl::Status MergeSection(const std::string& section, const YAML::Node& key,
                            const YAML::Node& keys) {
    const auto [first, fresh] = section_lines_.emplace(section, LineOf(key));
    if (!fresh) {
      return Error(key, absl::StrCat("section ", section, " stands twice, first in line ",
                                     first->second, "; join the two"));
    }
    if (keys.IsNull()) return absl::OkStatus();  // all of its keys are commented out
    for (const auto& entry : keys) {
      EPS_ASSIGN_OR_RETURN(const std::string name, NameOf(entry.first));
      EPS_RETURN_IF_ERROR(MergeKey(absl::StrCat(section, ".", name), entry.first, entry.second));
    }
    return absl::OkStatus();
  }

  absl::Status MergeKey(const std::string& name, const YAML::Node& key_node,
                        const YAML::Node& value_node) {
    const absl::StatusOr<const Key*> key = FindKey(name);
    if (!key.ok()) return Error(key_node, key.status().message());
    const auto [first, fresh] = key_lines_.emplace((*key)->name, LineOf(key_node));
    if (!fresh) {
      return Error(key_node, absl::StrCat((*key)->name, " is set twice, first in line ",
                                          first->second, "; remove one"));
    }
    Value value;
    if (value_node.IsScalar()) {
      value.text = value_node.Scalar();
    } else if (value_node.IsSequence()) {
      value.is_list = true;
      for (const YAML::Node& item : value_node) {
        if (!item.IsScalar()) return Error(item, absl::StrCat(name, ": a list of plain values"));
        value.items.push_back(item.Scalar());
      }
    } else {
      return Error(key_node, absl::StrCat(name, ": expected a value (type ", (*key)->type,
                                          "), found ", value_node.IsMap() ? "a map" : "nothing"));
    }
    const absl::Status set = SetKey(**key, value, config_);
    return set.ok() ? set : Error(key_node, set.message());
  }

  const std::string origin_;
  Config* const config_;
  std::map<std::string, int> section_lines_;
  std::map<absl::string_view, int> key_lines_;
};

}  // namespace

absl::Status Config::Set(absl::string_view key, absl::string_view value) {
  EPS_ASSIGN_OR_RETURN(const Key* found, FindKey(key));
  return SetKey(*found, Value{std::string(value), {}, false}, this);
}

absl::Status Config::MergeYaml(absl::string_view yaml, absl::string_view origin) {
  Config merged = *this;
  YamlMerge merge(origin, &merged);
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(yaml));
    if (documents.size() > 1) {
      return merge.Error(documents[1], "a second document (\"---\"); only one is read");
    }
    if (!documents.empty()) EPS_RETURN_IF_ERROR(merge.Merge(documents[0]));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  }
  *this = std::move(merged);
  return absl::OkStatus();
}

absl::Status Config::MergeEnvironment(const std::map<std::string, std::string>& environment) {
  Config merged = *this;
  for (const auto& [name, value] : environment) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, "EPS_")) continue;
    // EPS_LOG and its like are not configuration; EPS_SERVERS is the one short form.
    if (!absl::StrContains(rest, "__") && rest != "SERVERS") continue;
    const std::string key = absl::StrReplaceAll(absl::AsciiStrToLower(rest), {{"__", "."}});
    const absl::Status set = merged.Set(key, value);
    if (!set.ok()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", set.message()));
  }
  *this = std::move(merged);
  return absl::OkStatus();
}

std::string Config::ToYaml() const {
  std::string yaml;
  absl::string_view section;
  for (const Key& key : kKeys) {
    const std::pair<absl::string_view, absl::string_view> name =
        absl::StrSplit(key.name, absl::MaxSplits('.', 1));
    if (name.first != section) absl::StrAppend(&yaml, name.first, ":\n");
    section = name.first;
    absl::StrAppend(&yaml, "  ", name.second, ": ", key.print(*this), "\n");
  }
  return yaml;
}

std::vector<ConfigKey> ConfigKeys() {
  const Config defaults;
  std::vector<ConfigKey> keys;
  for (const Key& key : kKeys) {
    std::string help = key.help;
    for (const Alias& alias : kAliases) {
      if (alias.key == key.name) absl::StrAppend(&help, " Also: ", alias.name, ".");
    }
    keys.push_back({std::string(key.name), key.type, key.print(defaults), std::move(help)});
  }
  return keys;
}

absl::StatusOr<uint64_t> ParseSize(absl::string_view text) {
  Value value;
  value.text = std::string(text);
  uint64_t bytes = 0;
  EPS_RETURN_IF_ERROR(Size::Parse(value, &bytes));
  return bytes;
}

std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates) {
  std::string nearest;
  size_t best = std::numeric_limits<size_t>::max();
  for (const std::string& candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= name.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t substituted = diagonal + (name[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      }
    }
    // More than a third of the letters wrong is another word, not a slip.
    const bool close = row.back() * 3 <= std::max(name.size(), candidate.size());
    if (close && row.back() < best) {
      best = row.back();
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace eps
