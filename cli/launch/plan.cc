#include "cli/launch/plan.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/checksum.h"
#include "base/config/model_folder.h"
#include "base/config/spec_builder.h"
#include "base/files/files.h"
#include "base/files/safetensors_folder.h"
#include "base/job/layout/chunk_map.h"
#include "base/job/layout/model_layout.h"
#include "base/job/layout/server_count.h"
#include "base/job/models/model_family.h"
#include "base/machine/machine_limits.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "checkpoint/checkpoint_folders.h"
#include "cli/launch/model/evaluation_rules.h"
#include "cli/launch/plugin/chosen_plugin.h"
#include "compression/codec_table.h"
#include "planner/memory_plan.h"
#include "planner/units.h"
#include "planner/workload.h"
#include "wire/channel.h"
#include "wire/payload_message.h"
#include "worker/data/batch_source.h"
#include "worker/data/quickstart_texts.h"
#include "worker/data/sample_source.h"
#include "worker/data/tokenizer_digest.h"

namespace eps {
namespace {

namespace fs = std::filesystem;

// Weights in other formats. A user who names such a folder does not expect new weights.
constexpr const char* kOtherWeights[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                         "tf_model.h5", "flax_model.msgpack"};
// The quickstart's held-out text: every Debian has this file, and the corpus does not contain it.
constexpr char kQuickstartHeldOut[] = "/usr/share/doc/perl-base/copyright";
constexpr uint64_t kQuickstartEvaluations = 4;
constexpr uint64_t kQuickstartHeldOutSamples = 64;
constexpr uint32_t kMaxSpawnedServers = 256;

// Returns files as given, and replaces each folder by the regular files below it, sorted by path.
absl::StatusOr<std::vector<std::string>> ListDataFiles(const std::vector<std::string>& paths,
                                                       const std::string& key) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(fs::absolute(path, error).string());
      continue;
    }
    std::vector<std::string> below;
    for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
         it.increment(error)) {
      std::error_code ignored;
      if (fs::symlink_status(it->path(), ignored).type() != fs::file_type::regular) continue;
      below.push_back(fs::absolute(it->path(), ignored).string());
    }
    if (error || below.empty()) {
      return absl::NotFoundError(
          absl::StrCat(key, ": no regular file below ", path, error ? ": " + error.message() : ""));
    }
    std::sort(below.begin(), below.end());
    files.insert(files.end(), below.begin(), below.end());
  }
  return files;
}

// Returns the properties of the run's model that its data must fit.
absl::StatusOr<DataNeeds> NeedsOfRun(const TrainPlan& plan, const ModelSpec& model) {
  DataNeeds needs = NeedsOf(model);
  if (plan.model_folder.empty()) return needs;
  EPS_ASSIGN_OR_RETURN(needs.tokenizer, TokenizerDigest(plan.model_folder));
  return needs;
}

// Sets training.seq_len to the length of the data's rows, if it is open and the data has rows.
absl::Status TakeRowLength(const SampleSource& data, uint32_t* seq_len) {
  const uint32_t row = data.row_tokens();
  if (row == 0 || *seq_len == row) return absl::OkStatus();
  if (*seq_len != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.seq_len is ", *seq_len, ", but the rows of data.path have ", row,
                     " tokens; leave it out, or make the data with --seq-len=", *seq_len));
  }
  *seq_len = row;
  return absl::OkStatus();
}

// Sets data.mask_token, if it is open, and the special tokens to those of the data's tokenizer.
absl::Status TakeMasking(const SampleSource& data, Auto<uint32_t>* mask_token, DataSpec* spec) {
  const std::optional<DataMasking> masking = data.masking();
  if (masking.has_value()) {
    spec->special_tokens = masking->special_tokens;
    if (!mask_token->has_value()) *mask_token = masking->mask_token;
  }
  if (mask_token->has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "data.mask_token: the model guesses masked tokens, and data.path does not say which id is "
      "the mask; make an .epsd file with a tokenizer that has one (eps data make), or set the key");
}

// Reads and checks the training data.
absl::StatusOr<DataSpec> LoadData(const ModelSpec& model, TrainPlan* plan) {
  std::vector<std::string>& paths = plan->config.data.path;
  if (paths.empty()) {
    return absl::InvalidArgumentError(
        "data.path (--data) is empty: name text files, one .epsd, or one .bin of uint16 tokens");
  }
  EPS_ASSIGN_OR_RETURN(paths, ListDataFiles(paths, "data.path"));
  EPS_ASSIGN_OR_RETURN(const DataNeeds needs, NeedsOfRun(*plan, model));
  EPS_ASSIGN_OR_RETURN(const std::shared_ptr<const SampleSource> data,
                       SampleSource::Open(paths, needs));
  EPS_RETURN_IF_ERROR(data->CheckContent(needs));
  EPS_RETURN_IF_ERROR(TakeRowLength(*data, &plan->config.training.seq_len));
  DataSpec spec;
  if (needs.labels == LabelKind::kMaskedTokens) {
    EPS_RETURN_IF_ERROR(TakeMasking(*data, &plan->config.data.mask_token, &spec));
  } else {
    plan->unigram_entropy = data->UnigramEntropy();
  }
  spec.tokens = data->tokens();
  spec.samples = data->rows();
  spec.sha256 = data->Sha256Hex();
  return spec;
}

// Reads and checks the held-out data, so that no run fails at its first evaluation.
absl::Status LoadHeldOut(TrainPlan* plan) {
  const TrainingConfig& training = plan->config.training;
  const bool has_data = !plan->config.data.eval_path.empty();
  if (training.eval_steps == 0) {
    if (!has_data) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "data.eval_path names held-out data, but training.eval_steps is 0: nothing would be "
        "evaluated; set the steps between evaluations");
  }
  const ModelFamily& family = FamilyOf(plan->spec.model.type);
  if (!family.ReadsData(plan->spec.model)) {
    plan->eval_samples = training.eval_samples;
    if (training.eval_samples > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "training.eval_steps of a model of type ", family.hf_type(),
        " needs training.eval_samples: it has no data set whose size could be the default"));
  }
  if (!has_data) {
    return absl::InvalidArgumentError(absl::StrCat("training.eval_steps is ", training.eval_steps,
                                                   ", but data.eval_path names no held-out data"));
  }
  EPS_ASSIGN_OR_RETURN(plan->config.data.eval_path,
                       ListDataFiles(plan->config.data.eval_path, "data.eval_path"));
  EPS_ASSIGN_OR_RETURN(const DataNeeds needs, NeedsOfRun(*plan, plan->spec.model));
  EPS_ASSIGN_OR_RETURN(const std::shared_ptr<const SampleSource> data,
                       SampleSource::Open(plan->config.data.eval_path, needs, "data.eval_path"));
  EPS_RETURN_IF_ERROR(data->CheckContent(needs));
  EPS_RETURN_IF_ERROR(NewEvaluationSource(plan->spec, *data, training.eval_samples).status());
  plan->eval_samples = training.eval_samples;
  if (plan->eval_samples == 0) plan->eval_samples = data->samples(plan->spec.training.seq_len);
  return absl::OkStatus();
}

// Returns the model that two cores train in minutes until it writes words.
ModelSpec QuickstartModel() {
  ModelSpec model;
  model.gpt2.n_layer = 4;
  model.gpt2.n_embd = 128;
  model.gpt2.n_head = 4;
  model.gpt2.n_positions = 128;
  // GPT-2's 0.02 suits wide models. In a narrow one it leaves the residual stream so small that the
  // first norms amplify it, and the gradient spikes while Adam warms up.
  model.gpt2.initializer_range = 0.06;
  return model;
}

// Returns whether a run trains on the quickstart's texts.
bool UsesQuickstartTexts(const RunConfig& run) {
  return run.quickstart && run.config.data.path.empty();
}

// Evaluates on held-out text, unless the run has an evaluation of its own or this system does not
// have that text.
void EvaluateQuickstart(uint64_t steps, Config* config) {
  std::error_code error;
  if (config->training.eval_steps > 0 || !config->data.eval_path.empty() ||
      !fs::is_regular_file(kQuickstartHeldOut, error)) {
    return;
  }
  config->data.eval_path = {kQuickstartHeldOut};
  config->training.eval_steps = std::max<uint64_t>(1, steps / kQuickstartEvaluations);
  config->training.eval_samples = kQuickstartHeldOutSamples;
}

// Returns whether both models have the same tensors, so that one continues from the weights of the
// other.
bool HaveSameTensors(const ModelSpec& a, const ModelSpec& b) {
  JobSpec of_a, of_b;
  of_a.model = a;
  of_b.model = b;
  if (!BuildLayout(0, &of_a).ok() || !BuildLayout(0, &of_b).ok()) return false;
  return std::equal(of_a.tensors.begin(), of_a.tensors.end(), of_b.tensors.begin(),
                    of_b.tensors.end(), [](const TensorSpec& x, const TensorSpec& y) {
                      return x.name == y.name && x.rows == y.rows && x.cols == y.cols;
                    });
}

// Reads the model of the run. A run that resumes continues with the program of its checkpoint: the
// folder of the model may have been exported again, with other calls, or may be gone.
absl::StatusOr<ModelSpec> ModelOfRun(const RunConfig& run, std::string* folder) {
  const std::string& path = run.config.model.path;
  absl::StatusOr<ModelSpec> given = ReadModel(path);
  if (path.empty()) return given;
  // The reader of the checkpoint says what is wrong with it.
  const absl::StatusOr<std::string> resume = ResumeFolder(run.config.checkpoint);
  if (!resume.ok() || resume->empty() || !HoldsExportedModel(*resume)) return given;
  absl::StatusOr<ModelSpec> kept = ReadModelFolder(*resume);
  if (!kept.ok()) return kept;
  if (!given.ok()) {
    if (!absl::IsNotFound(given.status())) return given;
    if (!run.config.optimizer.lr.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(given.status().message(),
                       ", and the default of optimizer.lr depends on its weights; set "
                       "optimizer.lr, or omit --model to continue ",
                       *resume, " with its own settings"));
    }
    *folder = *resume;
    return kept;
  }
  return HaveSameTensors(*given, *kept) ? kept : given;
}

absl::Status LoadModel(const RunConfig& run, TrainPlan* plan, ModelSpec* model) {
  const std::string& path = run.config.model.path;
  plan->model_folder = path.empty() ? "" : FolderOfModel(path);
  EPS_ASSIGN_OR_RETURN(*model, ModelOfRun(run, &plan->model_folder));
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  const absl::StatusOr<ModelPlace> place = FindModel(path);
  // If a run resumes, the model may be gone.
  if (place.ok()) plan->config.model.path = place->name;
  plan->model_files = FilesOfModel(plan->model_folder);
  const fs::path folder = plan->model_folder;
  for (const char* name : {kSafetensorsFile, kSafetensorsIndexFile}) {
    const std::string weights = (folder / name).string();
    if (!fs::exists(weights, error)) continue;
    plan->initial_weights = weights;
    return absl::OkStatus();
  }
  for (const char* name : kOtherWeights) {
    if (!fs::exists(folder / name, error)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("model.path: ", (folder / name).string(), " is not read, and there is no ",
                     kSafetensorsFile,
                     "; write one with save_pretrained of transformers, or name a config.json "
                     "in a folder of its own to begin with new weights"));
  }
  return absl::OkStatus();
}

// A job is created with one message, which holds its spec and the addresses of its servers.
absl::Status CheckFitsMessage(const JobSpec& spec) {
  constexpr size_t kMostSpecBytes = kMaxMessageBytes - (size_t{64} << 10);
  const size_t bytes = spec.ToText().size();
  if (bytes <= kMostSpecBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "model.path: the spec of the job would have ", bytes, " bytes for ", spec.tensors.size(),
      " tensors; at most ", kMostSpecBytes, " fit into a message"));
}

// Returns the text about bytes of residuals on the wire; empty if gradients are not sparse.
std::string ResidualText(const planner::Workload& work) {
  const planner::Bytes residuals = planner::ResidualBytes(work);
  if (residuals == planner::Bytes(0)) return "";
  return absl::StrCat(", residuals ", FormatBytes(residuals.value()), " each way");
}

// Returns the line about evaluations; empty if there are none.
std::string EvaluationSummary(const TrainPlan& plan) {
  if (plan.eval_samples == 0) return "";
  return absl::StrCat("evaluation: every ", plan.config.training.eval_steps,
                      " steps and after the last, ", FormatCount(plan.eval_samples),
                      " held-out samples", FiguresText(plan.spec, plan.config), "\n");
}

}  // namespace

absl::StatusOr<ModelSpec> ReadModel(const std::string& path) {
  if (path.empty()) return QuickstartModel();
  return ReadModelFolder(path);
}

absl::StatusOr<TrainPlan> MakePlan(const RunConfig& run) {
  TrainPlan plan;
  plan.config = run.config;
  if (UsesQuickstartTexts(run)) {
    EPS_ASSIGN_OR_RETURN(plan.config.data.path, QuickstartTextFiles());
  }
  ModelSpec model;
  EPS_RETURN_IF_ERROR(LoadModel(run, &plan, &model));

  DataSpec data;
  if (!FamilyOf(model.type).ReadsData(model)) {
    if (run.config.training.epochs > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("training.epochs: a model of type ", FamilyOf(model.type).hf_type(),
                       " reads no data to pass over; use training.steps"));
    }
    uint32_t& seq_len = plan.config.training.seq_len;
    if (seq_len == 0) seq_len = FamilyOf(model.type).default_seq_len(model);
    data.tokens = uint64_t{seq_len} + 1;  // one sample: there is no data to read
    data.sha256 = ToHex(Sha256Of(""));
  } else {
    EPS_ASSIGN_OR_RETURN(data, LoadData(model, &plan));
  }
  const uint32_t workers = static_cast<uint32_t>(std::max(1, run.config.worker.count));
  const StartWeights weights =
      plan.initial_weights.empty() ? StartWeights::kNew : StartWeights::kGiven;
  EPS_ASSIGN_OR_RETURN(const JobPlugins plugins, ChoosePlugins(plan.config));
  EPS_ASSIGN_OR_RETURN(plan.spec,
                       BuildJobSpec(plan.config, model, data, workers, weights, plugins));
  EPS_RETURN_IF_ERROR(CheckFitsMessage(plan.spec));
  KeepResolved(plan.spec, &plan.config);
  if (UsesQuickstartTexts(run)) EvaluateQuickstart(plan.spec.training.steps, &plan.config);
  EPS_RETURN_IF_ERROR(LoadHeldOut(&plan));
  EPS_RETURN_IF_ERROR(CheckEvaluations(plan.spec, plan.config));
  if (plan.config.worker.threads == 0) {
    // Workers of one machine share its processors. Resolve the number, because the bits depend on
    // it.
    plan.config.worker.threads = static_cast<int>(std::max(1u, UsableProcessors() / workers));
  }
  if (!plan.config.checkpoint.dir.empty()) {
    std::error_code error;
    plan.config.checkpoint.dir = fs::absolute(plan.config.checkpoint.dir, error).string();
  }
  return plan;
}

absl::StatusOr<ServerChoice> ChooseServers(const ServersConfig& config) {
  ServerChoice choice;
  if (config.addresses.empty()) {
    choice.spawn = 1;
    return choice;
  }
  uint32_t count = 0;
  if (absl::SimpleAtoi(config.addresses, &count)) {
    choice.spawn = count;
    if (count >= 1 && count <= kMaxSpawnedServers) return choice;
    return absl::InvalidArgumentError(absl::StrCat("servers.addresses (--servers): cannot start ",
                                                   config.addresses, " servers, 1 to ",
                                                   kMaxSpawnedServers, " are possible"));
  }
  std::set<std::string> seen;
  for (absl::string_view address : absl::StrSplit(config.addresses, ',')) {
    const absl::Status status = CheckAddress(address, /*allow_any_port=*/false);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("servers.addresses (--servers): expected a number of servers to start, or "
                       "addresses to attach to: ",
                       status.message()));
    }
    choice.attach.emplace_back(address);
    if (!seen.insert(choice.attach.back()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("servers.addresses (--servers): ", address, " appears twice"));
    }
  }
  return choice;
}

absl::StatusOr<std::string> PlanSummary(const TrainPlan& plan, uint32_t servers) {
  const JobSpec& spec = plan.spec;
  const TrainingSpec& t = spec.training;
  const ChunkMap chunks = ChunkMap::Build(spec);
  const uint32_t workers = static_cast<uint32_t>(std::max(1, plan.config.worker.count));
  EPS_ASSIGN_OR_RETURN(const planner::Workload work, planner::WorkloadOf(spec));

  EPS_RETURN_IF_ERROR(CheckServerCount(spec, chunks, servers));
  std::vector<uint64_t> per_server(servers, 0);
  std::vector<uint64_t> state(servers, 0);
  const std::vector<ShardId> placement = chunks.Place(servers);
  for (const Chunk& chunk : chunks.chunks()) {
    per_server[placement[chunk.id.value()].value()] += chunk.elements;
    state[placement[chunk.id.value()].value()] += StateBytes(spec, chunk);
  }
  if (*std::min_element(per_server.begin(), per_server.end()) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("servers.addresses (--servers): ", servers, " servers are too many for ",
                     chunks.chunks().size(),
                     " chunks: some would hold nothing; use fewer servers, or smaller chunks "
                     "(training.chunk_elements)"));
  }
  const double all_state = std::accumulate(state.begin(), state.end(), 0.0);
  EPS_ASSIGN_OR_RETURN(const CodecTable codecs, CodecTable::Build(spec, chunks));
  const planner::LargestStage stage = planner::FindLargestStage(spec, chunks, codecs);
  const double in_flight =
      sizeof(float) *
      (stage.gradient + (1 + std::max(0, plan.config.worker.prefetch)) * stage.weights);
  planner::Bytes stash;
  for (const planner::StageWork& of_stage : work.stages) {
    stash += static_cast<double>(t.parts) / workers * of_stage.stash;
  }
  return absl::StrCat(
      "model: ", FamilyOf(spec.model.type).Title(spec.model), ", ",
      FormatCount(spec.total_elements()), " parameters, ", spec.stages.size(), " stages, ",
      chunks.chunks().size(), " chunks\n", "servers: ", servers, ", ", FormatBytes(all_state),
      " of state (", absl::StrFormat("%.3g", work.state_per_parameter.value()),
      " bytes per parameter), at most ",
      FormatBytes(static_cast<double>(*std::max_element(state.begin(), state.end()))), " on one",
      plan.config.storage.durable() ? ", twice on its disk" : "", "\n", "workers: ", workers,
      ", about ", FormatBytes(in_flight), " of weights and gradients and ",
      FormatBytes(stash.value()), " of stash (", plan.config.worker.stash, ") on each\n",
      "wire per step: fetch ", FormatBytes(planner::FetchedBytes(work, workers).value()), " (",
      spec.codecs.weights, "), push ", FormatBytes(planner::PushedBytes(work).value()), " (",
      spec.codecs.gradients, ")", ResidualText(work), "\nbatch: ", t.micro_batch_size, " x ",
      t.micro_batches, " x ", t.parts, " samples (micro_batch_size x micro_batches x parts) of ",
      t.seq_len, " tokens = ", FormatCount(spec.tokens_per_step()), " tokens; mode ",
      NameOf(t.mode), ", clip ", NameOf(t.clip), "\n", "learning rate: ", spec.optimizer.lr, ", ",
      spec.schedule.name, ", ", spec.schedule.warmup_steps, " of ", t.steps, " steps warm-up\n",
      EvaluationSummary(plan));
}

}  // namespace eps
