#ifndef EPS_WIRE_TESTING_ANSWERING_CONTROL_H_
#define EPS_WIRE_TESTING_ANSWERING_CONTROL_H_

#include "eps/v1/control.grpc.pb.h"
#include "grpcpp/server_context.h"

namespace eps {

// Answers Hello, with which each client begins, and nothing else. Thread-safe.
class AnsweringControl : public v1::Control::Service {
 public:
  grpc::Status Hello(grpc::ServerContext*, const v1::HelloRequest*, v1::HelloReply*) override {
    return grpc::Status::OK;
  }
};

}  // namespace eps

#endif  // EPS_WIRE_TESTING_ANSWERING_CONTROL_H_
