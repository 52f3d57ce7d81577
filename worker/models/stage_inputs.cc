#include "worker/models/stage_inputs.h"

#include <optional>

#include "ATen/ops/empty.h"
#include "ATen/ops/ones.h"
#include "c10/util/Exception.h"
#include "c10/util/accumulate.h"
#include "torch/csrc/autograd/custom_function.h"
#include "worker/exec/device_kernels.h"

namespace eps {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns memory to fill for a tensor on the device of `like`, with arbitrary content.
Tensor UploadBuffer(at::IntArrayRef shape, at::ScalarType type, const Tensor& like) {
  return at::empty(shape, at::TensorOptions().dtype(type).pinned_memory(!like.device().is_cpu()));
}
// Copies it to that device, ordered with the computation there. A CPU returns `filled` itself.
Tensor Uploaded(const Tensor& filled, const Tensor& like) {
  return filled.to(at::TensorOptions().device(like.device()), /*non_blocking=*/true);
}

template <class To, class From>
Tensor Upload(const std::vector<From>& values, at::IntArrayRef shape, at::ScalarType type,
              const Tensor& like) {
  Tensor out = UploadBuffer(shape, type, like);
  To* const data = out.mutable_data_ptr<To>();
  for (size_t i = 0; i < values.size(); ++i) data[i] = values[i];
  return Uploaded(out, like);
}

void CheckOneForEachSample(size_t count, const MicroBatch& batch) {
  TORCH_CHECK(count == batch.samples, "a micro-batch of ", batch.samples, " samples holds ", count,
              " labels");
}

Tensor Product(const RngKey& key, double p, const Tensor& x, const Tensor& residual) {
  const DeviceKernels* const kernels = DeviceKernels::ForOrNull(x);
  if (kernels != nullptr && DeviceKernels::Takes(x.scalar_type())) {
    return kernels->Dropout(key, p, x.contiguous(),
                            residual.defined() ? residual.contiguous() : residual);
  }
  Tensor y = x.mul(DropoutMask(key, p, x.sizes(), x)).to(x.scalar_type());
  return residual.defined() ? y.add_(residual) : y;
}

// Product with a derivative that draws the mask again.
class MaskedProduct : public torch::autograd::Function<MaskedProduct> {
 public:
  // A mask.
  struct Mask {
    RngKey key;
    double p;
  };
  static Tensor forward(AutogradContext* context, const Tensor& x,
                        const std::optional<Tensor>& residual, const Mask& mask) {
    const RngKey& key = mask.key;
    context->saved_data["key"] =
        std::vector<int64_t>{static_cast<int64_t>(key.seed), static_cast<int64_t>(key.step),
                             key.micro_batch, key.stage, key.site};
    context->saved_data["p"] = mask.p;
    context->saved_data["residual"] = residual.has_value();
    return Product(key, mask.p, x, residual.value_or(Tensor()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const std::vector<int64_t> saved = context->saved_data["key"].toIntVector();
    const RngKey key = {static_cast<uint64_t>(saved[0]), static_cast<uint64_t>(saved[1]),
                        static_cast<uint32_t>(saved[2]), static_cast<uint16_t>(saved[3]),
                        static_cast<uint16_t>(saved[4])};
    return {Product(key, context->saved_data["p"].toDouble(), grads[0], Tensor()),
            context->saved_data["residual"].toBool() ? grads[0] : Tensor(), Tensor()};
  }
};

}  // namespace

Tensor IdTensor(const std::vector<int32_t>& ids, const MicroBatch& batch, const Tensor& like) {
  TORCH_CHECK(ids.size() == size_t{batch.samples} * batch.seq_len, "a micro-batch of ",
              batch.samples, " samples of ", batch.seq_len, " tokens holds ", ids.size(), " ids");
  return Upload<int64_t>(ids, {batch.samples, batch.seq_len}, at::kLong, like);
}

Tensor SampleLabels(const std::vector<int32_t>& labels, const MicroBatch& batch,
                    const Tensor& like) {
  CheckOneForEachSample(labels.size(), batch);
  return Upload<int64_t>(labels, {batch.samples}, at::kLong, like);
}

Tensor SampleTargets(const std::vector<float>& targets, const MicroBatch& batch,
                     const Tensor& like) {
  CheckOneForEachSample(targets.size(), batch);
  return Upload<float>(targets, {batch.samples}, at::kFloat, like);
}

Tensor ImageTensor(const std::vector<int64_t>& image, const MicroBatch& batch, const Tensor& like) {
  std::vector<int64_t> shape = {batch.samples};
  shape.insert(shape.end(), image.begin(), image.end());
  TORCH_CHECK(batch.pixels.size() == static_cast<size_t>(c10::multiply_integers(shape)),
              "a micro-batch of ", batch.samples, " images holds ", batch.pixels.size(), " pixels");
  return Upload<float>(batch.pixels, shape, at::kFloat, like);
}

Tensor SeenTokens(const MicroBatch& batch, const Tensor& like) {
  std::vector<int32_t> documents;  // the number of each token's document in its sample
  for (size_t i = 0; i < batch.positions.size(); ++i) {
    const int32_t before = i % batch.seq_len == 0 ? 0 : documents.back();
    documents.push_back(before + (batch.positions[i] == 0 ? 1 : 0));
  }
  const Tensor document = IdTensor(documents, batch, like);
  const Tensor not_later =
      at::ones({batch.seq_len, batch.seq_len}, like.options().dtype(at::kBool)).tril();
  return document.unsqueeze(2).eq(document.unsqueeze(1)).logical_and(not_later).unsqueeze(1);
}

RngKey MaskKey(const JobSpec& spec, StageId stage, const MicroBatch& batch, uint16_t site) {
  RngKey key;
  key.seed = spec.training.seed;
  key.step = batch.step.value();
  key.micro_batch = batch.index;
  key.stage = static_cast<uint16_t>(stage.value());
  key.site = site;
  return key;
}

Tensor DropoutMask(const RngKey& key, double p, at::IntArrayRef shape, const Tensor& like) {
  if (const DeviceKernels* const kernels = DeviceKernels::ForOrNull(like)) {
    return kernels->DropoutMask(key, p, shape, like);
  }
  Tensor mask = UploadBuffer(shape, at::kFloat, like);
  FillDropoutMask(key, p, absl::MakeSpan(mask.mutable_data_ptr<float>(), mask.numel()));
  return Uploaded(mask, like);
}

Tensor Drop(const RngKey& key, double p, const Tensor& x, const Tensor& residual) {
  return DeviceKernels::ForOrNull(x) != nullptr ? DropKeepingNoMask(key, p, x, residual)
                                                : Product(key, p, x, residual);
}

Tensor DropKeepingNoMask(const RngKey& key, double p, const Tensor& x, const Tensor& residual) {
  std::optional<Tensor> addend;
  if (residual.defined()) addend = residual;
  return MaskedProduct::apply(x, addend, MaskedProduct::Mask{key, p});
}

}  // namespace eps
