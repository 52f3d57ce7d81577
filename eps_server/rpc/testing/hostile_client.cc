#include "eps_server/rpc/testing/hostile_client.h"

#include <zlib.h>

#include "base/check.h"
#include "eps_server/rpc/testing/test_client.h"
#include "grpc/byte_buffer.h"
#include "grpc/grpc.h"
#include "grpc/grpc_security.h"
#include "grpcpp/support/status.h"
#include "wire/channel.h"
#include "wire/grpc_status.h"

namespace eps {
namespace {

constexpr size_t kMebibyte = size_t{1} << 20;

// Compresses one piece of the file; every piece but the last ends at a byte and refers to no other.
std::string Deflated(z_stream* stream, const std::string& input, int flush) {
  std::string output(input.size() + 1024, '\0');
  stream->next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
  stream->avail_in = static_cast<uInt>(input.size());
  stream->next_out = reinterpret_cast<Bytef*>(output.data());
  stream->avail_out = static_cast<uInt>(output.size());
  const int result = deflate(stream, flush);
  EPS_CHECK(result == Z_OK || result == Z_STREAM_END);
  output.resize(output.size() - stream->avail_out);
  return output;
}

std::string LittleEndian(uint32_t value) {
  std::string text;
  for (int i = 0; i < 4; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

}  // namespace

std::string GzipOfZeros(int mebibytes) {
  const std::string zeros(kMebibyte, '\0');
  z_stream stream = {};
  constexpr int kRawDeflate = -15;
  EPS_CHECK(deflateInit2(&stream, 9, Z_DEFLATED, kRawDeflate, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  const std::string piece = Deflated(&stream, zeros, Z_FULL_FLUSH);
  const std::string end = Deflated(&stream, "", Z_FINISH);
  deflateEnd(&stream);
  const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(zeros.data()), kMebibyte);
  uLong whole = crc;
  std::string file("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10);
  for (int i = 0; i < mebibytes; ++i) {
    file += piece;
    if (i > 0) whole = crc32_combine(whole, crc, kMebibyte);
  }
  return file + end + LittleEndian(static_cast<uint32_t>(whole)) +
         LittleEndian(static_cast<uint32_t>(mebibytes * kMebibyte));
}

absl::Status SendGzip(const std::string& address, const std::string& method,
                      const std::string& message) {
  KeepGrpcInitialised();
  // The filter that compresses adds the header, and leaves a message alone that is compressed.
  grpc_arg algorithm = {};
  algorithm.type = GRPC_ARG_INTEGER;
  algorithm.key = const_cast<char*>(GRPC_COMPRESSION_CHANNEL_DEFAULT_ALGORITHM);
  algorithm.value.integer = GRPC_COMPRESS_GZIP;
  const grpc_channel_args args = {1, &algorithm};
  grpc_channel_credentials* credentials = grpc_insecure_credentials_create();
  grpc_channel* channel = grpc_channel_create(address.c_str(), credentials, &args);
  grpc_completion_queue* queue = grpc_completion_queue_create_for_pluck(nullptr);
  const gpr_timespec deadline = gpr_time_add(
      gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_seconds(kCallTimeout.count(), GPR_TIMESPAN));
  grpc_call* call = grpc_channel_create_call(
      channel, nullptr, GRPC_PROPAGATE_DEFAULTS, queue,
      grpc_slice_from_copied_buffer(method.data(), method.size()), nullptr, deadline, nullptr);
  grpc_slice slice = grpc_slice_from_copied_buffer(message.data(), message.size());
  grpc_byte_buffer* request = grpc_raw_compressed_byte_buffer_create(&slice, 1, GRPC_COMPRESS_GZIP);
  grpc_byte_buffer* reply = nullptr;
  grpc_metadata_array initial, trailing;
  grpc_metadata_array_init(&initial);
  grpc_metadata_array_init(&trailing);
  grpc_status_code code = GRPC_STATUS_UNKNOWN;
  grpc_slice details = grpc_empty_slice();
  grpc_op ops[6] = {};
  ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
  ops[1].op = GRPC_OP_SEND_MESSAGE;
  ops[1].data.send_message.send_message = request;
  ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
  ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
  ops[3].data.recv_initial_metadata.recv_initial_metadata = &initial;
  ops[4].op = GRPC_OP_RECV_MESSAGE;
  ops[4].data.recv_message.recv_message = &reply;
  ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
  ops[5].data.recv_status_on_client.trailing_metadata = &trailing;
  ops[5].data.recv_status_on_client.status = &code;
  ops[5].data.recv_status_on_client.status_details = &details;
  // A refused message is never sent to its end, so the status has a batch of its own.
  EPS_CHECK(grpc_call_start_batch(call, ops, 5, &ops[0], nullptr) == GRPC_CALL_OK);
  EPS_CHECK(grpc_call_start_batch(call, ops + 5, 1, &ops[5], nullptr) == GRPC_CALL_OK);
  const gpr_timespec never = gpr_inf_future(GPR_CLOCK_REALTIME);
  grpc_completion_queue_pluck(queue, &ops[5], never, nullptr);
  grpc_call_cancel(call, nullptr);
  grpc_completion_queue_pluck(queue, &ops[0], never, nullptr);
  const std::string text(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(details)),
                         GRPC_SLICE_LENGTH(details));
  grpc_slice_unref(details);
  grpc_slice_unref(slice);
  grpc_byte_buffer_destroy(request);
  if (reply != nullptr) grpc_byte_buffer_destroy(reply);
  grpc_metadata_array_destroy(&initial);
  grpc_metadata_array_destroy(&trailing);
  grpc_call_unref(call);
  grpc_completion_queue_shutdown(queue);
  grpc_completion_queue_destroy(queue);
  grpc_channel_destroy(channel);
  grpc_channel_credentials_release(credentials);
  return FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(code), text), method);
}

}  // namespace eps
