#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/job/models/gpt2.h"
#include "base/job/models/model_family.h"
#include "base/job/models/model_program.h"

namespace eps {
namespace {

constexpr uint32_t kUsualSeqLen = 256;  // for a model without a bound

// A model that comes as data. Tensors are stored in the order of the program, those of more than
// two dimensions as matrices. Matrices decay, unless their role is norm or bias; vectors do not.
class Program final : public ModelFamily {
 public:
  const char* file() const override { return "eps/program.json"; }
  const char* hf_type() const override { return ""; }
  std::string Title(const ModelSpec& model) const override { return Of(model).architecture; }

  void Keys(ModelKeyVisitor* visitor, ModelSpec* model) const override {
    visitor->Key("model.program", &model->program);
  }

  absl::Status CheckTogether(const ModelSpec& model) const override {
    const ModelProgram& p = Of(model);
    if (p.type == ElementType::kFloat32 || p.type == ElementType::kBfloat16 ||
        p.type == ElementType::kFloat16) {
      return absl::OkStatus();
    }
    return Refuse("model.program", "computes in ", NameOf(p.type),
                  ", but workers train in float32, bfloat16 or float16; export the model with one "
                  "of them as --dtype");
  }

  void Layout(const ModelSpec& model, LayoutWriter* out) const override {
    const ModelProgram& p = Of(model);
    std::vector<bool> decays(p.tensors.size(), false);
    for (const ProgramStageSpec& stage : p.stages) {
      for (const ProgramUse& use : stage.uses) {
        if (use.role != TensorRole::kNorm && use.role != TensorRole::kBias) {
          decays[use.tensor] = true;
        }
      }
    }
    std::vector<TensorId> ids;
    for (size_t i = 0; i < p.tensors.size(); ++i) {
      const ProgramTensor& tensor = p.tensors[i];
      TensorSpec spec;
      spec.name = tensor.name;
      spec.rank = tensor.rank();
      spec.rows = static_cast<uint32_t>(tensor.rows());
      spec.cols = static_cast<uint32_t>(tensor.cols());
      spec.init = tensor.init;
      if (tensor.init == Initializer::kNormal) spec.init_std = tensor.init_a;
      if (tensor.init == Initializer::kUniform) {
        spec.init_low = tensor.init_a;
        spec.init_high = tensor.init_b;
      }
      const GroupId trained =
          decays[i] && spec.rank == 2 ? LayoutWriter::kDecay : LayoutWriter::kNoDecay;
      ids.push_back(out->Tensor(spec, tensor.frozen ? LayoutWriter::kFrozen : trained));
    }
    for (const ProgramStageSpec& stage : p.stages) {
      out->Stage(stage.name);
      for (const ProgramUse& use : stage.uses) {
        const TensorId id = ids[use.tensor];
        // The matrices of experts have no second copy: no call multiplies by all of them at once.
        const bool is_matrix = p.tensors[use.tensor].shape.size() == 2;
        if (use.role == TensorRole::kLinearInOut && is_matrix) {
          out->UseAsInOut(id);
        } else if (use.role == TensorRole::kLinearOutIn && is_matrix) {
          out->UseAsOutIn(id);
        } else {
          out->UseAsRows(id);
        }
      }
    }
  }

  bool BackwardNeedsWeights(const ModelSpec& model, size_t stage) const override {
    return Of(model).stages[stage].needs_weights;
  }

  uint32_t vocabulary(const ModelSpec& model) const override { return Of(model).vocab_size; }
  bool ReadsData(const ModelSpec& /*model*/) const override { return true; }
  std::vector<int64_t> image(const ModelSpec& model) const override { return Of(model).image; }
  // A sample without token ids has as many positions as the calls make of it.
  uint32_t max_seq_len(const ModelSpec& model) const override {
    return Of(model).vocab_size > 0 ? Of(model).max_seq_len : Of(model).tokens;
  }
  uint32_t default_seq_len(const ModelSpec& model) const override {
    const uint32_t longest = max_seq_len(model);
    return longest == 0 ? kUsualSeqLen : longest;
  }
  uint32_t width(const ModelSpec& model) const override { return Of(model).width; }

  absl::Status CheckReadsTokens(const ModelSpec& model) const override {
    const ModelProgram& p = Of(model);
    if (p.task == ProgramTask::kCausalLm && p.head == HeadKind::kTokens && p.vocab_size > 0) {
      return absl::OkStatus();
    }
    return Refuse("model.path", p.architecture, " was exported for the task ", NameOf(p.task),
                  ", which does not continue token ids as the task causal_lm does");
  }
  LabelKind labels(const ModelSpec& model) const override {
    switch (Of(model).head) {
      case HeadKind::kTokens:
        break;
      case HeadKind::kClasses:
        return LabelKind::kClasses;
      case HeadKind::kMse:
        return LabelKind::kNumbers;
    }
    return Of(model).task == ProgramTask::kMlm ? LabelKind::kMaskedTokens : LabelKind::kTokens;
  }
  uint32_t classes(const ModelSpec& model) const override { return Of(model).classes; }

  bool SeparatesDocuments(const ModelSpec& model) const override {
    return Of(model).variant == ProgramVariant::kPacked;
  }

  double ForwardFlops(const ModelSpec& model, const StageShape& shape) const override {
    return Cost(Of(model), CallsOf(model, shape).flops, shape.tokens);
  }
  double ActivationBytes(const ModelSpec& model, const StageShape& shape) const override {
    const ModelProgram& p = Of(model);
    const double saved = Cost(p, CallsOf(model, shape).saved, shape.tokens);
    const bool scores = shape.stage + 1 == shape.stages && p.head == HeadKind::kTokens;
    if (!scores) return saved;
    // The loss computes with an FP32 copy of 16-bit scores.
    const bool is_copied = p.type != ElementType::kFloat32;
    return saved + HeadActivationBytes(shape.tokens, p.vocab_size) +
           (is_copied ? static_cast<double>(BytesOf(p.type)) * shape.tokens * p.vocab_size : 0);
  }

  absl::StatusOr<ModelSpec> Parse(absl::string_view json,
                                  const std::string& origin) const override {
    absl::StatusOr<ModelProgram> program = ParseModelProgram(json);
    if (!program.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.path: ", origin, ": ", program.status().message()));
    }
    ModelSpec model;
    model.type = ModelType::kProgram;
    model.program = std::make_shared<const ModelProgram>(*std::move(program));
    return model;
  }
  std::string ToJson(const ModelSpec& model) const override { return Of(model).text; }

  std::vector<FileTensor> InFiles(const ModelSpec& model, const TensorSpec&,
                                  size_t tensor) const override {
    const ProgramTensor& t = Of(model).tensors[tensor];
    std::vector<uint64_t> shape(t.shape.begin(), t.shape.end());
    if (t.kind == TensorFiles::kStack) shape = {t.rows() / t.files.size(), t.cols()};
    std::vector<FileTensor> files;
    for (const std::string& name : t.files) {
      files.push_back({name, shape, t.kind == TensorFiles::kNew});
    }
    return files;
  }
  absl::string_view EqualTo(const ModelSpec& model, absl::string_view name) const override {
    for (const ProgramTensor& tensor : Of(model).tensors) {
      if (std::find(tensor.aliases.begin(), tensor.aliases.end(), name) != tensor.aliases.end()) {
        return tensor.name;
      }
    }
    return "";
  }

 private:
  static const ModelProgram& Of(const ModelSpec& model) { return *model.program; }
  static const CallList& CallsOf(const ModelSpec& model, const StageShape& shape) {
    const ModelProgram& p = Of(model);
    return p.calls_of(std::min(shape.stage, p.stages.size() - 1));
  }
  static double Cost(const ModelProgram& p, const ProgramCost& cost, double tokens) {
    if (p.tokens > 0) tokens = p.tokens;
    return cost.linear * tokens + cost.quadratic * tokens * tokens;
  }
};

const FamilyRegistration kProgram(ModelType::kProgram, new Program());

}  // namespace
}  // namespace eps
