#include "worker/client/byte_stream.h"

#include <deque>
#include <utility>

#include "base/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/client_callback.h"

namespace eps {
namespace {

class GenericByteStream final
    : public ByteStream,
      private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  GenericByteStream(const std::shared_ptr<grpc::Channel>& channel, ByteStream::OnMessage on_message,
                    ByteStream::OnDone on_done)
      : stub_(std::make_unique<grpc::GenericStub>(channel)),
        context_(std::make_unique<grpc::ClientContext>()),
        on_message_(std::move(on_message)),
        on_done_(std::move(on_done)) {}

  void Start(const std::string& method, std::shared_ptr<GenericByteStream> self) {
    self_ = std::move(self);
    stub_->PrepareBidiStreamingCall(context_.get(), method, grpc::StubOptions(), this);
    AddHold();  // until CloseWrites, writes are started from outside the reactor's callbacks
    StartRead(&incoming_);
    StartCall();
  }

  void Write(grpc::ByteBuffer message) override EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (closed_) return;
    outgoing_.push_back(std::move(message));
    // Under the lock: CloseWrites must not release the hold between the decision and the start.
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Cancel() override EPS_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    if (context_ != nullptr) context_->TryCancel();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return CloseWrites();
    on_message_(incoming_);
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return CloseWrites();
    MutexLock lock(&mu_);
    outgoing_.pop_front();
    if (!closed_ && !outgoing_.empty()) StartWrite(&outgoing_.front());
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<GenericByteStream> self = std::move(self_);
    {
      // Release both references to the channel now. After on_done its owner may drop the channel,
      // and the last reference must not be dropped on a gRPC thread, which would wait for itself.
      MutexLock lock(&mu_);
      outgoing_.clear();
      context_.reset();
      stub_.reset();
    }
    on_done_(status);
    on_message_ = nullptr;  // the callbacks may hold this stream
    on_done_ = nullptr;
  }

  void CloseWrites() EPS_EXCLUDES(mu_) {
    {
      MutexLock lock(&mu_);
      if (closed_) return;
      closed_ = true;
    }
    RemoveHold();
  }

  std::unique_ptr<grpc::GenericStub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  ByteStream::OnMessage on_message_;
  ByteStream::OnDone on_done_;
  grpc::ByteBuffer incoming_;
  std::shared_ptr<GenericByteStream> self_;

  Mutex mu_;
  std::deque<grpc::ByteBuffer> outgoing_ EPS_GUARDED_BY(mu_);  // the front is being written
  bool closed_ EPS_GUARDED_BY(mu_) = false;
};

}  // namespace

std::shared_ptr<ByteStream> ByteStream::Open(const std::shared_ptr<grpc::Channel>& channel,
                                             const std::string& method, OnMessage on_message,
                                             OnDone on_done) {
  auto stream =
      std::make_shared<GenericByteStream>(channel, std::move(on_message), std::move(on_done));
  stream->Start(method, stream);
  return stream;
}

}  // namespace eps
