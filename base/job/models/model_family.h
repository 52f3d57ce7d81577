#ifndef EPS_BASE_JOB_MODELS_MODEL_FAMILY_H_
#define EPS_BASE_JOB_MODELS_MODEL_FAMILY_H_

// The description of a model for everybody but the worker's program: its keys, tensors, stages,
// operations and config.json, one family for each type. Families have no state and live as long as
// the process; every function may be called from any thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/job/key_rules.h"
#include "base/job/layout.h"
#include "base/job/models/layout_writer.h"
#include "base/job/models/model_spec.h"

namespace eps {

// Visits the hyperparameters of a model in the order of the canonical text ("model.n_layer").
class ModelKeyVisitor {
 public:
  virtual ~ModelKeyVisitor() = default;
  virtual void Key(absl::string_view key, int* value, const Range& rule) = 0;
  virtual void Key(absl::string_view key, double* value, const Reals& rule) = 0;
  virtual void Key(absl::string_view key, bool* value) = 0;
  virtual void Key(absl::string_view key, std::shared_ptr<const ModelProgram>* value) = 0;
};

// One stage of a model, for counting.
struct StageShape {
  size_t stage = 0;
  size_t stages = 0;      // of the model
  uint64_t elements = 0;  // of the tensors that the stage uses
  double tokens = 0;      // that it computes
};

// A tensor in a model's files. Where several of them hold one tensor of the layout, their elements
// follow one another there.
struct FileTensor {
  std::string name;
  std::vector<uint64_t> shape;
  bool is_new = false;  // files that others wrote lack it; it begins with its initial values

  uint64_t elements() const;
};

// The values that a model predicts: the token that follows each one, tokens that are hidden from
// it, or for each sample a class or a number.
enum class LabelKind { kTokens, kMaskedTokens, kClasses, kNumbers };

// The interface of one model type, which FamilyOf finds.
class ModelFamily {
 public:
  virtual ~ModelFamily() = default;

  // The file that describes a model, relative to its folder.
  virtual const char* file() const { return kConfigJson; }
  // The model_type of its config.json; empty if it does not describe the model.
  virtual const char* hf_type() const = 0;
  // The name of the model in lines for people.
  virtual std::string Title(const ModelSpec& model) const { return NameOf(model.type); }
  virtual void Keys(ModelKeyVisitor* visitor, ModelSpec* model) const = 0;
  // Rules between several keys, each of which is in its range. InvalidArgument names the key.
  virtual absl::Status CheckTogether(const ModelSpec& model) const = 0;
  virtual void Layout(const ModelSpec& model, LayoutWriter* out) const = 0;
  // StageSpec::backward_needs_weights of a stage of Layout.
  virtual bool BackwardNeedsWeights(const ModelSpec& /*model*/, size_t /*stage*/) const {
    return true;
  }

  // Token ids are below this; 0: the model reads none.
  virtual uint32_t vocabulary(const ModelSpec& model) const = 0;
  // Returns whether the samples of the model come from data.
  virtual bool ReadsData(const ModelSpec& model) const { return vocabulary(model) > 0; }
  // Channels, height and width of the image in each sample; empty without images.
  virtual std::vector<int64_t> image(const ModelSpec& /*model*/) const { return {}; }
  // Longest sample; 0: no bound.
  virtual uint32_t max_seq_len(const ModelSpec& model) const = 0;
  // InvalidArgument if the model reads anything but token ids, each labelled with the one that
  // follows.
  virtual absl::Status CheckReadsTokens(const ModelSpec&) const { return absl::OkStatus(); }
  virtual LabelKind labels(const ModelSpec& /*model*/) const { return LabelKind::kTokens; }
  // Labels are below this if they are classes.
  virtual uint32_t classes(const ModelSpec& /*model*/) const { return 0; }
  // Returns whether documents that share a row do not see each other.
  virtual bool SeparatesDocuments(const ModelSpec& /*model*/) const { return true; }
  // training.seq_len where it is left open.
  virtual uint32_t default_seq_len(const ModelSpec& model) const = 0;
  // Elements of the input of a stage, for one token.
  virtual uint32_t width(const ModelSpec& model) const = 0;
  // Floating-point operations of a stage's forward pass over one sequence.
  virtual double ForwardFlops(const ModelSpec& model, const StageShape& shape) const = 0;
  // Bytes of FP32 that this forward pass keeps for its backward pass, the input not counted.
  virtual double ActivationBytes(const ModelSpec& model, const StageShape& shape) const = 0;

  // Reads the content of file(). InvalidArgument names `origin` and the field.
  virtual absl::StatusOr<ModelSpec> Parse(absl::string_view json,
                                          const std::string& origin) const = 0;
  // The content that Parse reads back.
  virtual std::string ToJson(const ModelSpec& model) const = 0;

  // How the tensors in files on the Hub may differ from Layout.
  //
  // Returns where tensor number `tensor` of Layout is.
  virtual std::vector<FileTensor> InFiles(const ModelSpec& model, const TensorSpec& spec,
                                          size_t tensor) const;
  // Returns whether older files hold a tensor that the model does not need.
  virtual bool IsObsolete(absl::string_view /*tensor*/) const { return false; }
  // Returns the tensor of Layout to which a tensor that is not in Layout must be equal bit for bit,
  // because the model ties them; empty if there is none.
  virtual absl::string_view EqualTo(const ModelSpec& /*model*/,
                                    absl::string_view /*tensor*/) const {
    return "";
  }
  // The beginning of names of Layout that files may leave out.
  virtual absl::string_view optional_prefix() const { return ""; }
  // For the message about a matrix that is transposed in the file.
  virtual absl::string_view shape_note() const { return "the matrix is transposed"; }

  // The name of file() for the families that read Hugging Face's description.
  static constexpr char kConfigJson[] = "config.json";
};

// A tensor as the layout has it: one of its own name and shape.
std::vector<FileTensor> AsLaidOut(const TensorSpec& tensor);

const ModelFamily& FamilyOf(ModelType type);
// In the order of ModelType.
absl::Span<const ModelFamily* const> Families();

// A piece of a tensor of the layout in a tensor of a file.
struct FilePiece {
  size_t file_tensor = 0;  // index into InFiles
  uint64_t first = 0;      // element there
  uint64_t offset = 0;     // of its first element among those asked for
  size_t count = 0;
};
// Returns the pieces of elements [first, first + count) of a tensor, in their order.
std::vector<FilePiece> PiecesOf(const std::vector<FileTensor>& tensors, uint64_t first,
                                size_t count);

// The vocabulary of a model whose token ids are the bytes of a text.
inline constexpr uint32_t kByteVocabulary = 256;

// Makes FamilyOf and ParseModel find a family. The file of each model defines one of these as a
// static object; no other file names the family.
class FamilyRegistration {
 public:
  // `family` lives as long as the process.
  FamilyRegistration(ModelType type, const ModelFamily* family);
};

// Bounds of the hyperparameters, and the rules between them. InvalidArgument names the key.
absl::Status ValidateModel(const ModelSpec& model);

// Sets StageSpec::backward_needs_weights of the model's stages.
void SetBackwardNeeds(const ModelSpec& model, std::vector<StageSpec>* stages);

// The model that a config.json describes. InvalidArgument names `origin` (the file) and the field,
// or says how to export a model of another type.
absl::StatusOr<ModelSpec> ParseModel(absl::string_view json, const std::string& origin);
// The content of the model's file().
std::string ModelToJson(const ModelSpec& model);

}  // namespace eps

#endif  // EPS_BASE_JOB_MODELS_MODEL_FAMILY_H_
