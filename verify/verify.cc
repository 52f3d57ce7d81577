#include "verify/verify.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/checksum.h"
#include "base/config/app_arguments.h"
#include "base/job/plugin_spec.h"
#include "base/machine/machine_limits.h"
#include "base/status_macros.h"
#include "compression/codec_table.h"
#include "optimizer/plugin/updater_plugin.h"
#include "verify/compare.h"
#include "verify/reference_models.h"
#include "verify/reference_training.h"
#include "verify/relaxed_comparison.h"
#include "verify/run_folder.h"
#include "verify/stage_programs.h"
#include "worker/data/batch_source.h"
#include "worker/data/sample_source.h"
#include "worker/exec/torch_runtime.h"

namespace eps {
namespace {

std::string PlantList() {
  std::string text = "mistakes that --plant=NAME plants in the reference:\n";
  for (const PlantInfo& info : Plants()) {
    absl::StrAppendFormat(&text, "  %-22s %s\n", info.name, info.what);
  }
  return text;
}

// The threads of each worker of a run on one machine; by default the workers share its cores.
int ThreadsOfWorker(const WorkerConfig& worker) {
  if (worker.threads > 0) return worker.threads;
  return std::max(1, static_cast<int>(UsableProcessors()) / std::max(1, worker.count));
}

bool IsCpu(const std::string& profile) { return absl::StrContains(profile, " cpu "); }

// `profile` is that of a device that computes, or on a CPU that of worker.device=auto here.
absl::Status CheckDevice(const RunFolder& run, const VerifyOptions& options, uint64_t step,
                         const std::string& profile) {
  if (options.relaxed) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> recorded, run.ComputeProfiles(step));
  if (options.device != "cpu") return CheckComputedLike(recorded, profile);
  return CheckComputedOnCpu(recorded, run.config().worker.device, profile);
}

absl::StatusOr<std::unique_ptr<ReferenceModel>> ModelOf(const VerifyOptions& options,
                                                        const RuntimeOptions& runtime,
                                                        const JobSpec& spec) {
  const bool shifts_masks = options.plant == Plant::kWrongMaskKey;
  if (options.device == "cpu" && !options.stage_programs) {
    ReferenceOptions reference;
    reference.threads = runtime.threads;
    reference.mask_stage_shift = shifts_masks ? 1 : 0;
    return NewReferenceModel(spec, reference);
  }
  if (!shifts_masks) return NewStagePrograms(spec, runtime);
  return absl::InvalidArgumentError(
      "--plant: this mistake is one of the independent reference; omit --device and "
      "--stage-programs");
}

absl::Status CheckVerifiable(const RunFolder& run) {
  if (!HasReferenceModel(run.spec().model.type)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the run in ", run.path(), " trained a model of type ", NameOf(run.spec().model.type),
        ", whose gradients are random numbers, not derivatives; eps verify compares ",
        absl::StrJoin(ReferenceModelTypes(), " and "), " models (model.path)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const SampleSource>> OpenData(const VerifyOptions& options,
                                                             const RunFolder& run) {
  const std::vector<std::string>& files =
      options.data.empty() ? run.config().data.path : options.data;
  if (files.empty()) {
    return absl::NotFoundError(absl::StrCat(
        run.path(),
        "/checkpoint-1/eps/config.yaml does not name the data files; give --data=FILE"));
  }
  const JobSpec& spec = run.spec();
  EPS_ASSIGN_OR_RETURN(auto data, SampleSource::Open(files, NeedsOf(spec.model)));
  const std::string sum = data->Sha256Hex();
  if (data->tokens() != spec.data.tokens || data->rows() != spec.data.samples ||
      sum != spec.data.sha256) {
    return absl::FailedPreconditionError(
        absl::StrCat("the data (", files[0], files.size() > 1 ? " and more" : "", ") has ",
                     data->tokens(), " tokens, sha256 ", sum, "; the run read ", spec.data.tokens,
                     " tokens, sha256 ", spec.data.sha256, "; name its files with --data"));
  }
  return data;
}

// Compares the reference with the recorded run, step by step, and reports to `out`.
class Comparison {
 public:
  Comparison(const RunFolder& run, uint64_t steps, std::ostream* out)
      : run_(run), names_(StateArrayNames(run.spec())), steps_(steps), out_(*out) {}

  // Returns true if the step is equal.
  absl::StatusOr<bool> CompareStep(const ReferenceTraining& reference,
                                   const StepFigures& expected) {
    const uint64_t step = reference.step();
    EPS_ASSIGN_OR_RETURN(const RecordedState state, run_.OpenState(step));
    EPS_ASSIGN_OR_RETURN(const StepFigures found, run_.Figures(step));
    differences_.clear();
    std::string line = absl::StrCat("step: ", step, "/", steps_);
    EPS_RETURN_IF_ERROR(CompareState(reference, state, &line));
    EPS_RETURN_IF_ERROR(CompareParts(reference, &line));
    CompareFigures(expected, found, &line);
    out_ << line << std::endl;
    for (const std::string& text : differences_) {
      out_ << "different: step " << step << ", " << text << std::endl;
    }
    const bool equal = differences_.empty();
    if (!equal || step == steps_) EPS_RETURN_IF_ERROR(PrintSums(reference, state));
    return equal;
  }

 private:
  void Note(const char* name, const std::string& difference, std::string* line) {
    absl::StrAppend(line, " ", name, ": ", difference.empty() ? "equal" : "different");
    if (!difference.empty()) differences_.push_back(difference);
  }

  absl::Status CompareState(const ReferenceTraining& reference, const RecordedState& state,
                            std::string* line) {
    for (size_t field = 0; field < names_.size(); ++field) {
      EPS_ASSIGN_OR_RETURN(const std::optional<TensorDifference> difference,
                           CompareTensors(run_.spec(), reference.state()[field], state[field],
                                          /*sums_or_null=*/nullptr));
      const char* const name = names_[field].c_str();
      Note(name, difference.has_value() ? Describe(run_.spec(), name, *difference) : "", line);
    }
    return absl::OkStatus();
  }

  // Compares the residuals of all parts that have any on either side.
  absl::Status CompareParts(const ReferenceTraining& reference, std::string* line) {
    residuals_.reset();
    for (uint32_t part = 0; part < run_.spec().training.parts; ++part) {
      EPS_ASSIGN_OR_RETURN(const auto found, run_.OpenResiduals(reference.step(), part));
      const std::map<std::string, std::vector<float>> expected = reference.Residuals(part);
      if (found == nullptr && expected.empty()) continue;
      if (!residuals_.has_value()) residuals_.emplace();
      EPS_ASSIGN_OR_RETURN(const std::string difference,
                           CompareResiduals(expected, found.get(), &*residuals_));
      const std::string of_part = difference.empty() ? "" : absl::StrCat("part ", part, ": ");
      Note(absl::StrCat("residuals of part ", part).c_str(), of_part + difference, line);
    }
    return absl::OkStatus();
  }

  void CompareFigures(const StepFigures& expected, const StepFigures& found, std::string* line) {
    Note("loss", CompareFigure("loss", expected.loss, found.loss), line);
    Note("grad_norm", CompareFigure("grad_norm", expected.grad_norm, found.grad_norm), line);
    Note("lr", CompareFigure("lr", expected.lr, found.lr), line);
    std::string tokens;
    if (expected.tokens != found.tokens) {
      tokens = absl::StrCat("tokens: expected ", expected.tokens, ", found ", found.tokens);
    }
    Note("tokens", tokens, line);
    if (expected.skipped == found.skipped) return;
    Note("skipped",
         absl::StrCat("skipped: expected ", expected.skipped ? "true" : "false", ", found ",
                      found.skipped ? "true" : "false"),
         line);
  }

  absl::Status PrintSums(const ReferenceTraining& reference, const RecordedState& state) {
    ArraySums weights, moments;
    for (size_t field = 0; field < names_.size(); ++field) {
      EPS_RETURN_IF_ERROR(CompareTensors(run_.spec(), reference.state()[field], state[field],
                                         field == 0 ? &weights : &moments)
                              .status());
    }
    std::string expected, found;
    if (residuals_.has_value()) {
      expected = absl::StrCat(" residuals sha256:", ToHex(residuals_->expected.Finish()));
      found = absl::StrCat(" residuals sha256:", ToHex(residuals_->found.Finish()));
    }
    out_ << "expected: weights sha256:" << ToHex(weights.expected.Finish())
         << " state sha256:" << ToHex(moments.expected.Finish()) << expected << std::endl;
    out_ << "found:    weights sha256:" << ToHex(weights.found.Finish())
         << " state sha256:" << ToHex(moments.found.Finish()) << found << std::endl;
    return absl::OkStatus();
  }

  const RunFolder& run_;
  const std::vector<std::string> names_;  // of the state arrays
  const uint64_t steps_;
  std::ostream& out_;
  std::vector<std::string> differences_;
  std::optional<ArraySums>
      residuals_;  // of the step's parts, in order; none are kept if it is empty
};

absl::StatusOr<bool> CompareWithinBounds(const RunFolder& run, uint64_t steps,
                                         ReferenceTraining* reference, std::ostream* out) {
  const RelaxedBounds bounds = RelaxedBoundsOf(run.spec());
  *out << "relaxed: each step starts from the state of the run; relative errors of at most "
       << bounds.loss << " (loss) and " << bounds.gradient << " (gradient of a tensor) pass"
       << std::endl;
  RelaxedComparison comparison(run, steps, out);
  while (reference->step() < steps) {
    const std::vector<TensorValues> before = reference->state();
    EPS_ASSIGN_OR_RETURN(const StepFigures figures, reference->RunStep());
    EPS_ASSIGN_OR_RETURN(const bool close, comparison.CompareStep(before, figures, reference));
    if (!close) return false;
  }
  *out << "verified: " << steps << " steps are within the bounds, not bit for bit (--relaxed)"
       << std::endl;
  return true;
}

}  // namespace

absl::StatusOr<VerifyCommand> ParseVerifyArguments(const std::vector<std::string>& arguments) {
  VerifyCommand command;
  VerifyOptions& options = command.options;
  std::string plant;
  CLI::App app{
      "Recomputes a run in one process, step by step, and compares weights, moments and losses bit "
      "for bit. Exits with 0 if all steps are equal, with 1 if not.",
      "eps verify"};
  app.add_option("--run", options.run, "output folder of the run")->type_name("FOLDER");
  app.add_option("--data", options.data, "data files (default: the files that the run read)")
      ->type_name("FILE");
  app.add_option("--weights", options.weights,
                 "model.safetensors that the run started from (default: next to its model.path)")
      ->type_name("FILE");
  app.add_option("--threads", options.threads,
                 "LibTorch's threads; use as many as a worker had, because the bits depend on them "
                 "(default: the run's worker.threads)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--device", options.device,
                 "cpu, or cuda or cuda:N for a run whose workers computed on such a device: "
                 "implies --stage-programs")
      ->capture_default_str();
  app.add_flag("--stage-programs", options.stage_programs,
               "compute with the worker's stage programs, one after another, instead of the "
               "independent reference");
  app.add_flag("--relaxed", options.relaxed,
               "for a run that was computed on another kind of device: starts each step from the "
               "run's own state, and compares loss and gradients within bounds");
  app.add_option("--steps", options.steps, "number of steps to compare (default: all)");
  app.add_option("--plant", plant, "make a mistake on purpose; --plant=list lists them");
  EPS_ASSIGN_OR_RETURN(command.text, ParseAppArguments(&app, arguments));
  if (!command.text.empty()) return command;
  if (plant == "list") {
    command.text = PlantList();
    return command;
  }
  if (!plant.empty()) {
    EPS_ASSIGN_OR_RETURN(options.plant, ParsePlant(plant));
  }
  if (options.run.empty()) return absl::InvalidArgumentError("--run: the output folder is missing");
  return command;
}

absl::Status CheckComputedOnCpu(const std::vector<std::string>& recorded, const std::string& device,
                                const std::string& auto_profile) {
  const auto refuse = [](const std::string& found) {
    return absl::InvalidArgumentError(
        absl::StrCat(found,
                     ", whose bits differ from those of the reference's CPU; verify with "
                     "--device=cuda on such a device, or within bounds with --relaxed, or train "
                     "with --worker.device=cpu"));
  };
  for (const std::string& profile : recorded) {
    if (IsCpu(profile)) continue;
    return refuse(absl::StrCat("a worker of the run computed with \"", profile, "\""));
  }
  if (!recorded.empty()) return absl::OkStatus();
  if (absl::StartsWith(device, "cuda")) {
    return refuse(absl::StrCat("the workers of the run computed on ", device, " (worker.device)"));
  }
  if (device == "auto" && !IsCpu(auto_profile)) {
    return refuse(
        absl::StrCat("the run does not say how its workers computed; they chose their "
                     "device (worker.device=auto), which on this machine is a GPU (",
                     auto_profile, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckComputedLike(const std::vector<std::string>& recorded, const std::string& here) {
  for (const std::string& profile : recorded) {
    if (profile == here) continue;
    return absl::InvalidArgumentError(absl::StrCat("a worker of the run computed with \"", profile,
                                                   "\", and --device here is \"", here,
                                                   "\", whose bits may differ"));
  }
  if (!recorded.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--device: the run does not say how its workers computed, so that no device is known to have "
      "its bits");
}

absl::StatusOr<bool> RunVerify(const VerifyOptions& options, std::ostream* out) {
  EPS_ASSIGN_OR_RETURN(const RunFolder run, RunFolder::Open(options.run));
  EPS_RETURN_IF_ERROR(CheckVerifiable(run));
  const bool on_device = options.device != "cpu";
  RuntimeOptions runtime;
  if (on_device) runtime.device = options.device;
  EPS_ASSIGN_OR_RETURN(const std::string profile, TorchComputeProfile(runtime));
  EPS_RETURN_IF_ERROR(CheckDevice(run, options, /*step=*/1, profile));
  const JobSpec& spec = run.spec();
  if (options.relaxed) EPS_RETURN_IF_ERROR(CheckRelaxed(spec));
  if (const PluginSpec& plugin = spec.optimizer.plugin; !plugin.sha256.empty()) {
    const std::string& file = run.config().optimizer.plugin;
    EPS_RETURN_IF_ERROR(LoadUpdaterPlugin(file, plugin.sha256).status());
  }
  EPS_RETURN_IF_ERROR(LoadPluginCodecs(spec, run.config().quantization.plugin));
  EPS_ASSIGN_OR_RETURN(const auto data, OpenData(options, run));
  const auto batches = NewBatchSource(spec, *data);

  runtime.device = options.device;
  runtime.threads = options.threads > 0 ? options.threads : ThreadsOfWorker(run.config().worker);
  EPS_ASSIGN_OR_RETURN(const auto model, ModelOf(options, runtime, spec));
  EPS_ASSIGN_OR_RETURN(const auto reference,
                       ReferenceTraining::New(spec, model.get(), batches.get(), options.plant));
  const std::string weights_file =
      options.weights.empty() ? InitialWeightsFile(run.config()) : options.weights;
  if (!weights_file.empty()) {
    EPS_ASSIGN_OR_RETURN(TensorValues weights, ReadWeights(weights_file, spec));
    reference->SetWeights(std::move(weights));
  }

  const uint64_t steps =
      options.steps == 0 ? spec.training.steps : std::min(options.steps, spec.training.steps);
  *out << "verify: " << options.run << " steps: " << steps << " threads: " << runtime.threads
       << " weights: " << (weights_file.empty() ? "from the seed" : weights_file) << std::endl;
  for (const PlantInfo& info : Plants()) {
    if (info.plant != options.plant) continue;
    *out << "planted: " << info.name << ": " << info.what << std::endl;
  }
  if (options.relaxed) return CompareWithinBounds(run, steps, reference.get(), out);
  Comparison comparison(run, steps, out);
  while (reference->step() < steps) {
    EPS_RETURN_IF_ERROR(CheckDevice(run, options, reference->step() + 1, profile));
    EPS_ASSIGN_OR_RETURN(const StepFigures figures, reference->RunStep());
    EPS_ASSIGN_OR_RETURN(const bool equal, comparison.CompareStep(*reference, figures));
    if (!equal) return false;
  }
  *out << "verified: " << steps << " steps are equal bit for bit" << std::endl;
  return true;
}

}  // namespace eps
