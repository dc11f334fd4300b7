// Lets PyTorch's CPU-only build run fake tensors on the device "cuda" as a build with CUDA does: forward, backward and
// autocast dispatch to CUDA's operators. No kernel runs. Loaded by fake_cuda.py before torch.

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/RNN.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using at::Tensor;
using at::TensorList;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device getDevice() const override { return {c10::DeviceType::CUDA, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }

 private:
  c10::Stream stream() const noexcept { return c10::Stream(c10::Stream::DEFAULT, {c10::DeviceType::CUDA, 0}); }
};

// The name is the one that ATen looks up.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return true; }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return true; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  bool supportsBFloat16RNNWithCuDNN() const override { return true; }
  long versionCuDNN() const override { return 91900; }
  long versionRuntimeCuDNN() const override { return 91900; }
  double batchnormMinEpsilonCuDNN() const override { return 0; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

// sdp_utils.cpp, compute capability 8: flash attention in 16 bits without a mask and with at most 256 elements per head,
// else the memory-efficient kernel, which takes no fewer heads of keys than of queries: those are composed.
int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
                         double, bool, std::optional<double>, bool) {
  const auto type = query.scalar_type();
  const bool has_mask = mask.has_value() && mask->defined();
  const bool is_flash = (type == at::kHalf || type == at::kBFloat16) && !has_mask && query.sym_size(-1) <= 256 &&
                        query.sym_size(-1) == value.sym_size(-1);
  const bool is_grouped = query.dim() == 4 && query.sym_size(1) != key.sym_size(1);
  return is_flash ? 1 : is_grouped ? 0 : 2;
}

// Modes of cuDNN: 0 ReLU, 1 tanh, 2 LSTM, 3 GRU. Weights are used where they are, as those of nn.LSTM in one buffer.
std::tuple<Tensor, Tensor, Tensor> recur(int64_t mode, const Tensor& input, const Tensor& hx, const Tensor& cx,
                                         TensorList weights, bool has_biases, int64_t layers, double dropout,
                                         bool train, bool bidirectional, bool batch_first) {
  auto [output, hy, cy, reserve, buffer] = at::_cudnn_rnn(
      input, weights, has_biases ? 4 : 2, at::empty({0}, input.options()), hx,
      cx.defined() ? std::optional<Tensor>(cx) : std::nullopt, mode, hx.size(2), 0, layers, batch_first, dropout, train,
      bidirectional, at::IntArrayRef{}, std::nullopt);
  return {output, hy, cy};
}

void lstm(Tensor& output, Tensor& hy, Tensor& cy, const Tensor& input, TensorList hx, TensorList weights,
          bool has_biases, int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  std::tie(output, hy, cy) =
      recur(2, input, hx[0], hx[1], weights, has_biases, layers, dropout, train, bidirectional, batch_first);
}

template <int64_t mode>
void rnn(Tensor& output, Tensor& hy, const Tensor& input, const Tensor& hx, TensorList weights, bool has_biases,
         int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  Tensor none;
  std::tie(output, hy, none) =
      recur(mode, input, hx, none, weights, has_biases, layers, dropout, train, bidirectional, batch_first);
}

}  // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
}

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}

namespace at::native {

template <typename Stub>
using Register = RegisterCUDADispatch<std::remove_reference_t<Stub>>;

static Register<decltype(_fused_sdp_choice_stub)> attention(_fused_sdp_choice_stub, &choose_attention);
static Register<decltype(lstm_cudnn_stub)> long_short(lstm_cudnn_stub, &lstm);
static Register<decltype(gru_cudnn_stub)> gated(gru_cudnn_stub, &rnn<3>);
static Register<decltype(rnn_tanh_cudnn_stub)> tanh_cell(rnn_tanh_cudnn_stub, &rnn<1>);
static Register<decltype(rnn_relu_cudnn_stub)> relu_cell(rnn_relu_cudnn_stub, &rnn<0>);

}  // namespace at::native
