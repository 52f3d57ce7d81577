#ifndef EPS_BASE_CONFIG_CONFIG_H_
#define EPS_BASE_CONFIG_CONFIG_H_

// The configuration of a run. Precedence: --section.key=value flags > EPS_SECTION__KEY > YAML file
// > defaults. An unknown key is an error that names the nearest one. One table (config.cc) holds
// each key's name, type, default and meaning; `eps config reference` prints it.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

struct ModelConfig {
  std::string path;  // folder with config.json, or a config.json; empty: the quickstart model
};

struct DataConfig {
  std::vector<std::string> path;       // text files, or one flat .bin of uint16
  std::string order = "shuffled";      // shuffled | sequential
  std::vector<std::string> eval_path;  // held-out data, as path; empty: none
};

struct TrainingConfig {
  uint64_t steps = 100;
  uint32_t micro_batch_size = 4;
  uint32_t micro_batches = 1;
  uint32_t parts = 0;             // 0: the number of workers when the job is created
  uint32_t train_batch_size = 0;  // 0: micro_batch_size * micro_batches * parts; else checked
  uint32_t seq_len = 0;           // 0: the model's n_positions
  uint64_t seed = 42;
  std::string clip = "exact";  // exact | lagged | none
  double max_grad_norm = 1.0;
  std::string mode = "auto";       // auto | eager | sealed
  std::string nonfinite = "halt";  // halt | skip
  std::string replay = "rollback";
  std::string determinism = "strict";  // strict | relaxed
  uint32_t loss_block_tokens = 1024;
  uint64_t chunk_elements = 0;  // 0: from the model's size
  uint64_t eval_steps = 0;      // steps between evaluations; 0: never
  uint64_t eval_samples = 0;    // held-out samples of an evaluation; 0: all whole ones
};

struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double momentum = 0.0;
  double weight_decay = 0.01;
};

struct LrSchedulerConfig {
  std::string name = "constant";
  uint64_t warmup_steps = 0;
  double min_lr_ratio = 0.0;
  double num_cycles = 0.5;
  double power = 1.0;
};

struct QuantizationConfig {
  std::string weights = "fp32";
  std::string gradients = "fp32";
  std::string embedding_weights = "auto";  // auto: as weights if that is fp32, else bf16
  std::string embedding_gradients = "auto";
  std::string head_weights = "auto";
  std::string head_gradients = "auto";
  std::string norm_weights = "auto";  // auto: fp32
  std::string norm_gradients = "auto";
  std::string rounding = "nearest";                 // of mx9, mx6, mx4: nearest | truncate
  std::string backward_weights = "recompute_axis";  // recompute_axis | both_axes | decode_once
  uint64_t warmup_steps = 0;
  std::string index = "packed";          // of topk: packed | raw32
  std::string selection = "exact";       // of topk: exact | sampled
  std::string scope = "chunk";           // of topk: chunk | tensor
  bool error_feedback = true;            // of topk
  std::string residual_home = "server";  // server | worker
  std::string residual = "bf16";
};

struct StorageConfig {
  std::string kind = "dram";  // dram | nvme
  std::string path;
  uint64_t staging = uint64_t{256} << 20;  // bytes
  std::string cut_steps = "auto";          // auto | a number
  std::string log = "none";                // none | contributions
  uint64_t scrub = uint64_t{8} << 20;      // bytes per second
  bool reopen = true;                      // a server opens the job that it served
  uint64_t max_restarts = 10;              // of killed processes, by eps train

  // Whether servers keep cuts of the state in a folder, and a job outlives its processes.
  bool durable() const { return kind != "dram" || !path.empty(); }
};

struct CheckpointConfig {
  std::string dir;                // --out
  std::string resume = "none";    // none | latest | a checkpoint folder
  uint64_t save_steps = 0;        // 0: only at the end
  uint64_t save_total_limit = 0;  // checkpoints that are kept; 0: all
};

struct ServersConfig {
  std::string addresses;               // "2": spawn two; "host:port,host:port": attach
  std::string listen = "127.0.0.1:0";  // of eps serve
  std::string metrics;                 // HOST:PORT of eps serve's metrics; empty: none
  std::string trace;                   // folder for what eps serve's protocol does; empty: none
  int threads = 1;
  uint64_t memory_limit = 0;           // bytes; 0: what the machine has free
  bool insecure = false;               // a non-loopback listen needs it until TLS is there
  int64_t worker_timeout_ms = 60'000;  // a part that is gone for longer ends an eager job
  int jit_depth = 1;                   // stages quantized ahead of their first fetch
};

struct WorkerConfig {
  std::string device = "auto";  // auto | cpu | cuda | cuda:N
  std::string stash = "host";   // host | device
  std::string stash_codec = "fp32";
  int threads = 0;   // 0: all cores
  int prefetch = 1;  // stages fetched ahead; 0: none
  int count = 1;     // --workers
  int rank = 0;
  int64_t pass_time_ms = 0;  // of the synthetic model, for measurements; 0: none
  int64_t rpc_timeout_ms = 60'000;
};

struct MetricsConfig {
  uint64_t log_every_steps = 1;
  bool tensorboard = true;  // event files in checkpoint.dir/tensorboard
  std::string hardware;     // description of the machines, to compare a run with its plan
};

struct Config {
  ModelConfig model;
  DataConfig data;
  TrainingConfig training;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  QuantizationConfig quantization;
  StorageConfig storage;
  CheckpointConfig checkpoint;
  ServersConfig servers;
  WorkerConfig worker;
  MetricsConfig metrics;

  // Sets one key from text: numbers, true/false, sizes "16GiB", durations "30s" (into _ms keys,
  // whose key has no suffix), lists "[a, b]" or "a,b". Key names may be written with - for _, and
  // some have a second name (see ConfigKey::help). InvalidArgument: unknown key with the
  // nearest known one, or a value that does not parse, with what was expected.
  absl::Status Set(absl::string_view key, absl::string_view value);
  // Merges a YAML document: sections of keys, or `servers: 2` for servers.addresses. `origin` (a
  // file name) stands in the errors, with the line; a key that is set twice is an error. After an
  // error nothing has changed.
  absl::Status MergeYaml(absl::string_view yaml, absl::string_view origin);
  // Merges every EPS_SECTION__KEY of `environment` (name -> value), and EPS_SERVERS for
  // servers.addresses; other variables are not looked at. After an error nothing has changed.
  absl::Status MergeEnvironment(const std::map<std::string, std::string>& environment);
  // The resolved configuration as YAML that MergeYaml reads back to the same values.
  std::string ToYaml() const;
};

struct ConfigKey {
  std::string name;           // "training.seq_len"
  std::string type;           // "integer", "number", "text", "size", "duration", "list", "flag"
  std::string default_value;  // as ToYaml prints it
  std::string help;
};
// All keys in the order of the sections: the source of the generated reference table.
std::vector<ConfigKey> ConfigKeys();

// A size as the configuration's keys take it: "16GiB", "500MB" or bytes. InvalidArgument for
// anything else.
absl::StatusOr<uint64_t> ParseSize(absl::string_view text);

// The candidate with the smallest edit distance; empty if none is close. For error messages.
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace eps

#endif  // EPS_BASE_CONFIG_CONFIG_H_
