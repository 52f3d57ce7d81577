// Runs a model program in a folder of an export's example (tests/oracles/README.md), and compares
// scores and gradients with those in the folder, bit for bit; gradients in BF16, whose sums the
// worker takes in FP32, within 4 % of the tensor's and 0.1 % of the whole gradient (that of the
// bias of BERT's keys is only noise). Prints a line for each case; exits with 1 if one differs.
//
// usage: run_program FOLDER     with program.json, model.safetensors and cases.safetensors, which
// holds for each case CASE/columns/NAME, CASE/scores, CASE/d_scores and CASE/gradients/TENSOR

#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/exit_code.h"
#include "base/files/files.h"
#include "base/files/safetensors.h"
#include "base/files/safetensors_folder.h"
#include "base/job/job_spec.h"
#include "base/job/layout/model_layout.h"
#include "base/job/models/model_family.h"
#include "base/job/models/model_program.h"
#include "base/status_macros.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/exec/torch_guard.h"
#include "worker/models/program_evaluator.h"
#include "worker/models/program_ops.h"
#include "worker/models/program_tensors.h"

namespace eps {
namespace {

using at::Tensor;

std::vector<int64_t> ShapeOf(const std::vector<uint64_t>& shape) {
  return {shape.begin(), shape.end()};
}

// Reads a whole tensor as FP32, or as int64 if the file has integers.
absl::StatusOr<Tensor> ReadTensor(const SafetensorsReader& file, const std::string& content,
                                  const std::string& name) {
  EPS_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, file.Find(name));
  const bool integers = entry->dtype == "I64";
  Tensor tensor = at::empty(ShapeOf(entry->shape),
                            at::TensorOptions().dtype(integers ? at::kLong : at::kFloat));
  if (integers) {
    std::memcpy(tensor.mutable_data_ptr(), content.data() + entry->offset, entry->bytes);
    return tensor;
  }
  EPS_RETURN_IF_ERROR(file.Read(*entry, 0, entry->elements(), tensor.mutable_data_ptr<float>()));
  return tensor;
}

// An example in a folder.
class Example {
 public:
  absl::Status Open(const std::string& folder) {
    EPS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(folder + "/program.json"));
    EPS_ASSIGN_OR_RETURN(spec_.model, FamilyOf(ModelType::kProgram).Parse(text, folder));
    EPS_RETURN_IF_ERROR(BuildLayout(0, &spec_));
    EPS_ASSIGN_OR_RETURN(const auto weights, SafetensorsFolder::Open(folder));
    EPS_RETURN_IF_ERROR(ReadWeights(*weights));
    const std::string cases = folder + "/cases.safetensors";
    EPS_ASSIGN_OR_RETURN(cases_, SafetensorsReader::Open(cases));
    EPS_ASSIGN_OR_RETURN(content_, ReadTextFile(cases));
    for (size_t s = 0; s < program().stages.size(); ++s) {
      EPS_ASSIGN_OR_RETURN(
          auto stage, ProgramEvaluator::Create(program().calls_of(s), program().stages[s].name));
      stages_.push_back(std::move(stage));
    }
    return absl::OkStatus();
  }

  std::set<std::string> Cases() const {
    std::set<std::string> names;
    for (const SafetensorsEntry& entry : cases_->entries()) {
      names.insert(entry.name.substr(0, entry.name.find('/')));
    }
    return names;
  }

  // Returns a line about the first difference; empty if there is none.
  absl::StatusOr<std::string> Run(const std::string& name) const {
    std::vector<ProgramInputs> inputs;
    for (size_t s = 0; s < stages_.size(); ++s) {
      EPS_ASSIGN_OR_RETURN(ProgramInputs of_stage, InputsOf(name, s));
      inputs.push_back(std::move(of_stage));
    }
    EPS_ASSIGN_OR_RETURN(const Tensor expected, Read(name + "/scores"));
    EPS_ASSIGN_OR_RETURN(const Tensor d_scores, Read(name + "/d_scores"));
    std::string difference;
    std::vector<Tensor> gradients(program().tensors.size());
    EPS_RETURN_IF_ERROR(CatchTorch(name, [&] {
      const Tensor scores = Forward(&inputs);
      if (!scores.to(at::kFloat).equal(expected)) difference = Describe("scores", scores, expected);
      Backward(&inputs, d_scores.to(type()), &gradients);
    }));
    EPS_ASSIGN_OR_RETURN(const double whole, NormOfGradients(name));
    for (size_t t = 0; t < gradients.size(); ++t) {
      const std::string tensor = program().tensors[t].name;
      EPS_ASSIGN_OR_RETURN(const Tensor gradient, Read(name + "/gradients/" + tensor));
      if (!difference.empty() || IsEqual(gradients[t].to(at::kFloat), gradient, whole)) continue;
      difference = Describe("the gradient of " + tensor, gradients[t], gradient);
    }
    return difference;
  }

 private:
  const ModelProgram& program() const { return *spec_.model.program; }
  at::ScalarType type() const { return ScalarTypeOf(program().type); }
  absl::StatusOr<Tensor> Read(const std::string& name) const {
    return ReadTensor(*cases_, content_, name);
  }

  absl::StatusOr<double> NormOfGradients(const std::string& name) const {
    double squares = 0;
    for (const ProgramTensor& tensor : program().tensors) {
      EPS_ASSIGN_OR_RETURN(const Tensor gradient, Read(name + "/gradients/" + tensor.name));
      squares += gradient.square().sum().item<double>();
    }
    return std::sqrt(squares);
  }

  bool IsEqual(const Tensor& found, const Tensor& expected, double whole) const {
    if (program().type == ElementType::kFloat32) return found.equal(expected);
    return found.sizes() == expected.sizes() &&
           found.sub(expected).norm().item<double>() <=
               0.04 * expected.norm().item<double>() + 0.001 * whole;
  }

  static std::string Describe(const std::string& what, const Tensor& found,
                              const Tensor& expected) {
    if (found.sizes() != expected.sizes()) return absl::StrCat(what, " have another shape");
    const auto largest = [](const Tensor& x) { return x.abs().max().item<double>(); };
    return absl::StrCat(what, " differ by ", largest(found.sub(expected)), " of ",
                        largest(expected));
  }

  absl::Status ReadWeights(const SafetensorsFolder& folder) {
    const ModelFamily& family = FamilyOf(spec_.model.type);
    for (size_t t = 0; t < program().tensors.size(); ++t) {
      weights_.push_back(at::empty(program().tensors[t].shape));
      float* values = weights_.back().mutable_data_ptr<float>();
      for (const FileTensor& part : family.InFiles(spec_.model, spec_.tensors[t], t)) {
        EPS_ASSIGN_OR_RETURN(const auto stored, folder.Find(part.name));
        EPS_RETURN_IF_ERROR(stored.Read(0, part.elements(), values));
        values += part.elements();
      }
    }
    return absl::OkStatus();
  }

  // Everything but the activation.
  absl::StatusOr<ProgramInputs> InputsOf(const std::string& name, size_t stage) const {
    ProgramInputs inputs;
    for (const ProgramUse& use : program().stages[stage].uses) {
      inputs.weights.push_back({weights_[use.tensor].to(type()), Tensor(), nullptr});
    }
    inputs.constants = ProgramConstants(program(), program().stages[stage]);
    for (const ProgramInput input : program().calls_of(stage).inputs) {
      EPS_ASSIGN_OR_RETURN(Tensor column, Read(absl::StrCat(name, "/columns/", NameOf(input))));
      if (column.is_floating_point()) column = column.to(type());
      inputs.columns.push_back(std::move(column));
    }
    return inputs;
  }

  Tensor Forward(std::vector<ProgramInputs>* inputs) const {
    const at::NoGradGuard no_grad;
    Tensor x;
    for (size_t s = 0; s < stages_.size(); ++s) {
      (*inputs)[s].activation = x;
      x = stages_[s]->Run((*inputs)[s]);
    }
    return x;
  }

  // Recomputes each stage from its activation, as the worker does.
  void Backward(std::vector<ProgramInputs>* inputs, Tensor grad,
                std::vector<Tensor>* gradients) const {
    for (size_t s = stages_.size(); s-- > 0;) {
      ProgramInputs& of_stage = (*inputs)[s];
      std::vector<Tensor> leaves;
      for (ProgramWeight& weight : of_stage.weights) {
        weight.value = weight.value.detach().requires_grad_(true);
        leaves.push_back(weight.value);
      }
      if (s > 0) {
        of_stage.activation = of_stage.activation.detach().requires_grad_(true);
        leaves.push_back(of_stage.activation);
      }
      const at::AutoGradMode with_grad(true);
      const Tensor y = stages_[s]->Run(of_stage);
      const auto grads = torch::autograd::grad({y}, leaves, {grad}, /*retain_graph=*/false,
                                               /*create_graph=*/false, /*allow_unused=*/true);
      const std::vector<ProgramUse>& uses = program().stages[s].uses;
      for (size_t use = 0; use < uses.size(); ++use) {
        Tensor& sum = (*gradients)[uses[use].tensor];
        const Tensor gradient =
            grads[use].defined() ? grads[use].detach() : at::zeros(leaves[use].sizes());
        sum = sum.defined() ? sum.add(gradient) : gradient;
      }
      if (s > 0) grad = grads.back();
    }
  }

  JobSpec spec_;
  std::vector<Tensor> weights_;  // by tensor, in the shape of the program
  std::vector<std::unique_ptr<const ProgramEvaluator>> stages_;
  std::unique_ptr<SafetensorsReader> cases_;
  std::string content_;  // of their file
};

absl::Status RunAll(const std::string& folder) {
  at::set_num_threads(1);
  Example example;
  EPS_RETURN_IF_ERROR(example.Open(folder));
  bool equal = true;
  for (const std::string& name : example.Cases()) {
    EPS_ASSIGN_OR_RETURN(const std::string difference, example.Run(name));
    std::cout << name << ": " << (difference.empty() ? "equal" : difference) << std::endl;
    equal = equal && difference.empty();
  }
  if (equal) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(folder, ": some bits differ"));
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: run_program FOLDER" << std::endl;
    return static_cast<int>(eps::ExitCode::kUsage);
  }
  const absl::Status status = eps::RunAll(argv[1]);
  if (status.ok()) return 0;
  std::cerr << "run_program: " << status.message() << std::endl;
  return absl::IsAborted(status) ? 1 : static_cast<int>(eps::ExitCodeOf(status));
}
