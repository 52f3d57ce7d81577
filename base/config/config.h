#ifndef EPS_BASE_CONFIG_CONFIG_H_
#define EPS_BASE_CONFIG_CONFIG_H_

// The configuration of a run. Flags (--section.key=value) override the environment
// (EPS_SECTION__KEY), which overrides the YAML file, which overrides the defaults. An unknown key
// is an error that names the nearest one. A setting that two keys can give, such as the steps by
// training.steps or training.epochs, is what the highest layer with one of them says.
// base/job/keys.h has the settings that define the job's bits and their keys; config_keys.h adds
// the others. `eps config reference` prints all.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/config/devices_config.h"
#include "base/job/evaluation/metric.h"
#include "base/job/keys.h"
#include "base/job/names.h"
#include "base/job/optimizers.h"
#include "base/job/schedule.h"

namespace eps {

// ---- The sections of the configuration, with their defaults.

// The model to train.
struct ModelConfig {
  std::string path;  // folder with config.json, or a config.json; empty for the quickstart model
};

// LoRA adapters, which eps train gives to the model that it exports.
struct LoraConfig {
  uint32_t r = 0;    // 0: none
  double alpha = 0;  // 0: 2 r
  double dropout = 0;
  std::vector<std::string> targets;  // empty: what peft chooses
};

// The training data and the held-out data.
struct DataConfig {
  DataOrder order = DataOrder::kShuffled;
  double mlm_probability = kMlmProbability;
  Auto<uint32_t> mask_token;
  std::vector<std::string> path;       // text files, or one flat .bin of uint16
  std::vector<std::string> eval_path;  // held-out data, in the same formats; empty for none
};

// The training settings of the job, from which BuildJobSpec makes a TrainingSpec, and those of the
// run. parts, seq_len and chunk_elements are open while they are 0. At most one of steps and epochs
// is given.
struct TrainingConfig : TrainingSettings {
  TrainingConfig() {
    micro_batch_size = 4;
    parts = 0;
    seq_len = 0;
    clip = Clip::kExact;
  }
  Auto<uint64_t> steps;
  double epochs = 0;  // passes over the data
  Auto<Mode> mode;
  uint64_t chunk_elements = 0;
  // Checked against the product of the other sizes. 0 disables the check.
  uint32_t train_batch_size = 0;
  uint64_t eval_steps = 0;    // steps between evaluations; 0 disables them
  uint64_t eval_samples = 0;  // held-out samples of an evaluation; 0 means all complete ones
  // Evaluations without a better eval.best_metric after which the run ends; 0 disables this.
  uint64_t early_stop_patience = 0;
};

// The figures of an evaluation.
struct EvalConfig {
  std::vector<Metric> metrics;         // empty: all that the model's task has
  Metric best_metric = Metric::kLoss;  // compares evaluations
};

// Settings of the tensors whose name a regular expression finds.
struct GroupRule {
  std::string match;          // RE2 syntax; finds any part of a name
  double lr_multiplier = 1;   // of optimizer.lr
  Auto<double> weight_decay;  // of matrices; open: optimizer.weight_decay
  bool frozen = false;        // keeps its values; then the other two are left out
};

// The update rule and its parameters.
struct OptimizerConfig : OptimizerChoices {
  Auto<double> lr;
  double weight_decay = 0.01;     // of matrices
  std::string plugin;             // the file of a plug-in updater
  std::string plugin_parameters;  // "alpha=0.9 eps=1e-6"
  // The first rule that finds a tensor's name applies; the other tensors keep the settings above.
  std::vector<GroupRule> groups;
};

// The learning-rate schedule. At most one of warmup_steps and warmup_ratio is given.
struct ScheduleConfig : ScheduleSpec {
  ScheduleConfig() { name = "linear"; }
  double warmup_ratio = 0;  // warm-up as a share of the steps
};

// Codecs of one kind of tensor; an open one is derived from those of the inner stages.
struct AutoCodecs {
  Auto<std::string> weights;
  Auto<std::string> gradients;
};

// Parameters of codecs with their own keys; they become part of the codec's name.
enum class Rounding { kNearest, kTruncate };
template <>
inline constexpr std::array<const char*, 2> kNames<Rounding> = {"nearest", "truncate"};
enum class TopkIndex { kPacked, kRaw32 };
template <>
inline constexpr std::array<const char*, 2> kNames<TopkIndex> = {"packed", "raw32"};
enum class TopkValues { kBf16, kFp32 };
template <>
inline constexpr std::array<const char*, 2> kNames<TopkValues> = {"bf16", "fp32"};
enum class TopkSelection { kExact, kSampled };
template <>
inline constexpr std::array<const char*, 2> kNames<TopkSelection> = {"exact", "sampled"};
enum class TopkScope { kChunk, kTensor };
template <>
inline constexpr std::array<const char*, 2> kNames<TopkScope> = {"chunk", "tensor"};

// The codecs of weights, gradients and residuals.
struct QuantizationConfig : CodecSettings {
  AutoCodecs embedding;
  AutoCodecs head;
  AutoCodecs norm;
  std::string plugin;                      // the file of a plug-in codec
  Rounding rounding = Rounding::kNearest;  // of mx9, mx6, mx4
  TopkIndex index = TopkIndex::kPacked;
  TopkValues values = TopkValues::kBf16;
  TopkSelection selection = TopkSelection::kExact;
  TopkScope scope = TopkScope::kChunk;
};

// Where servers keep state, how they make it durable, and how a run restarts processes.
struct StorageConfig {
  std::string kind = "auto";  // auto | dram | nvme | csd
  std::string path;
  std::vector<std::string> drives;         // folders that hold tensors instead of `path`
  uint64_t dram = 0;                       // bytes of the state in memory, with nvme and csd
  uint64_t staging = uint64_t{256} << 20;  // bytes
  DevicesConfig csd;
  std::string cut_steps = "auto";      // auto | a number
  uint64_t cut_seconds = 300;          // most seconds between cuts; 0 sets no limit
  std::string log = "none";            // none | contributions
  uint64_t scrub = uint64_t{8} << 20;  // bytes per second
  bool reopen = true;                  // whether a restarted server opens the job that it served
  uint64_t max_restarts = 10;          // restarts of killed processes by eps train
  bool keep = false;  // whether the state that eps train chose to keep outlives its run
  // Not a key: eps train chose `path` because `kind` was auto (cli/launch/state/state_home.h).
  bool chosen = false;

  // Returns where tensors lie; auto stands for dram.
  std::string tier() const { return kind == "auto" ? "dram" : kind; }
  // Returns true if servers keep cuts of the state in a folder, so that a job outlives its
  // processes.
  bool durable() const { return tier() != "dram" || !path.empty(); }
};

// Where a run writes checkpoints, and which one it resumes from.
struct CheckpointConfig {
  std::string dir;                // --out
  std::string resume = "none";    // none | latest | a checkpoint folder
  uint64_t save_steps = 500;      // 0 saves only at the end
  uint64_t save_total_limit = 0;  // checkpoints to keep; 0 keeps all
  Auto<bool> save_best;           // whether `best` names the best one; open: if there is data
  std::string on_saved;           // command that runs after each checkpoint; empty: none
  int64_t on_saved_timeout_ms = 6 * 3'600'000;  // 0 sets no limit
};

// The parameter servers.
struct ServersConfig {
  std::string addresses;               // "2" spawns two; "host:port,host:port" attaches
  std::string listen = "127.0.0.1:0";  // of eps serve
  std::string http;                    // HOST:PORT of eps serve's probes and metrics; empty: none
  std::string trace;                   // folder for traces of the protocol; empty disables them
  int threads = 0;                     // 0 means as many as the machine can spare
  uint64_t memory_limit = 0;           // bytes; 0 means the free memory
  bool insecure = false;               // allows `listen` on an address that is not loopback
  bool trust_plugins = false;          // loads plug-ins into the server's own process
  std::vector<std::string> peers;      // servers that eps serve may connect to; empty: loopback
  int64_t worker_timeout_ms = 60'000;  // an eager job ends if a part has no worker for longer
  int64_t push_timeout_ms = 30'000;    // from the credit of a gradient to its last byte
  int64_t gate_timeout_ms = 30'000;    // from the last sign of who holds the job at a border
  int64_t unread_timeout_ms = 60'000;  // a client that reads nothing for longer is disconnected
  uint64_t shm_weights = uint64_t{256} << 20;   // bytes shared with the machine's workers; 0: none
  uint64_t shm_gradients = uint64_t{64} << 20;  // bytes shared with each of them; 0: none
  std::string shm_folder;                       // of the socket; empty: one of the user
  int64_t drain_timeout_ms = 25'000;            // the most time from SIGTERM to the end of a server
  int64_t worker_lease_ms = 10'000;  // a lease ends so long after the last Beat of its worker
  std::optional<int64_t> worker_close_grace_ms;  // nullopt: 1 s if sealed, else the lease's length
  int64_t worker_stuck_timeout_ms = 600'000;     // without a computed stage; 0 disables
  int jit_depth = 1;                             // stages to quantize ahead of their first fetch
};

// The workers.
struct WorkerConfig {
  std::string device = "auto";  // auto | cpu | cuda | cuda:N
  std::string stash = "auto";   // auto | host | device
  uint64_t stash_host = 0;      // bytes; 0 means half of the free memory, shared by local workers
  std::string stash_path;       // a folder; empty: the stash lies in memory only
  uint64_t device_memory = 0;   // bytes; 0 means nine tenths of what is free
  std::string keep = "none";    // none | auto
  std::string stash_codec = "fp32";
  uint64_t frozen_cache = 0;  // bytes of frozen weights to keep between steps; 0 keeps none
  int threads = 0;            // 0 uses all cores
  int prefetch = 1;           // stages to fetch ahead; 0 disables it
  int count = 1;              // --workers
  int rank = 0;
  int64_t pass_time_ms = 0;        // minimum time of a pass, for measurements; 0 disables it
  std::string transport = "auto";  // auto | shm | grpc
  int64_t rpc_timeout_ms = 60'000;
  int64_t join_timeout_ms = 600'000;  // for servers and a job to appear; 0 sets no limit
  bool stay = false;                  // waits for the next job after each one
  std::string http;                   // HOST:PORT of eps worker's probes and metrics; empty: none
};

// Certificates and tokens, and where TLS is used.
struct SecurityConfig {
  std::string dir;                         // holds tls.key, tls.crt and ca.crt; empty: plaintext
  std::string tls = "auto";                // auto: not on loopback | always
  std::string trust_domain = "eps";        // of the roles in certificates
  std::string token;                       // file with the token of this process; empty: none
  std::string token_keys;                  // of servers: file with the keys that verify tokens
  std::string tokens = "optional";         // of servers: optional | required
  int64_t connection_age_ms = 86'400'000;  // of servers; 0 sets no limit
};

// Progress lines, event files and the comparison with a plan.
struct MetricsConfig {
  uint64_t log_every_steps = 1;
  bool tensorboard = true;  // event files in checkpoint.dir/tensorboard
  bool wandb = false;       // an offline run in checkpoint.dir/wandb, at the end
  std::string hardware;     // description of the machines, to compare a run with its plan
};

// All sections. Copyable; thread-compatible.
struct Config {
  ModelConfig model;
  LoraConfig lora;
  DataConfig data;
  TrainingConfig training;
  EvalConfig eval;
  OptimizerConfig optimizer;
  ScheduleConfig lr_scheduler;
  QuantizationConfig quantization;
  StorageConfig storage;
  CheckpointConfig checkpoint;
  ServersConfig servers;
  WorkerConfig worker;
  MetricsConfig metrics;
  SecurityConfig security;

  // Sets one key from text: numbers, true/false, names, sizes "16GiB", durations "30s" (into _ms
  // members, whose keys have no suffix), lists "[a, b]" or "a,b". In key names - is the same as _,
  // and some keys have a second name (see ConfigKey::help). InvalidArgument for an unknown key,
  // with the nearest known one, or for a value that does not parse, with what was expected.
  // BuildJobSpec later refuses numbers that are out of range, and two keys for one setting.
  absl::Status Set(absl::string_view key, absl::string_view value);
  // Merges a YAML document: sections of keys, or `servers: 2` for servers.addresses. Errors begin
  // with `origin` (a file name) and the line; a key that is set twice is an error. An error leaves
  // the configuration unchanged.
  absl::Status MergeYaml(absl::string_view yaml, absl::string_view origin);
  // Merges every EPS_SECTION__KEY of `environment` (name -> value), and EPS_SERVERS for
  // servers.addresses; ignores other variables. An error leaves the configuration unchanged.
  absl::Status MergeEnvironment(const std::map<std::string, std::string>& environment);
  // Sets the keys of a command line, in order. Errors begin with the key as a flag ("--key: "); an
  // error leaves the configuration unchanged.
  absl::Status MergeFlags(const std::vector<std::pair<std::string, std::string>>& flags);
  // Returns the configuration as YAML that MergeYaml reads back to the same values.
  std::string ToYaml() const;
};

// A key of the configuration and its documentation.
struct ConfigKey {
  std::string name;  // "training.seq_len"
  std::string type;  // "integer", "number", "text", "name", "size", "duration", "list", …
  std::string default_value;       // as ToYaml prints it
  std::string help;                // including accepted names and other names of the key
  std::vector<std::string> names;  // the values of type "name", with "auto" first if accepted
};
// Returns all keys, in the order of the sections. The reference page is generated from them.
std::vector<ConfigKey> ConfigKeys();

// Parses a size in the form of the configuration: "16GiB", "500MB" or bytes. InvalidArgument for
// anything else.
absl::StatusOr<uint64_t> ParseSize(absl::string_view text);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_CONFIG_H_
