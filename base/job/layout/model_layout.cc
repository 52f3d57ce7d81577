#include "base/job/layout/model_layout.h"

#include <algorithm>

#include "base/job/models/layout_writer.h"
#include "base/job/models/model_family.h"
#include "base/status_macros.h"

namespace eps {

absl::Status BuildLayout(double weight_decay, JobSpec* spec) {
  EPS_RETURN_IF_ERROR(ValidateModel(spec->model));
  spec->groups = {{kDecayGroup, weight_decay}, {"no_decay", 0.0}};
  spec->tensors.clear();
  spec->stages.clear();
  LayoutWriter writer(&spec->tensors, &spec->stages);
  FamilyOf(spec->model.type).Layout(spec->model, &writer);
  const bool freezes =
      std::any_of(spec->tensors.begin(), spec->tensors.end(),
                  [](const TensorSpec& tensor) { return tensor.group == LayoutWriter::kFrozen; });
  if (freezes) spec->groups.push_back({"frozen", 0.0, 1.0, /*frozen=*/true});
  SetBackwardNeeds(spec->model, &spec->stages);
  return absl::OkStatus();
}

}  // namespace eps
