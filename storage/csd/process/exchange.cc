#include "storage/csd/process/exchange.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace eps::csd {
namespace {

using Deadline = std::chrono::steady_clock::time_point;

// Waits until the socket can be read or written, or is closed.
absl::Status Wait(int socket, short events, Deadline deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return absl::DeadlineExceededError("the device did not answer in time");
    pollfd waiting = {socket, events, 0};
    const int n = poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left.count() + 1, 60'000)));
    if (n > 0) return absl::OkStatus();
    if (n < 0 && errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("poll: ", std::strerror(errno)));
    }
  }
}

absl::Status SendAll(int socket, absl::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t n = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      EPS_RETURN_IF_ERROR(Wait(socket, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("send: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

// Sends data at the pace of its link.
absl::Status SendData(int socket, const ExchangeData& data, Deadline deadline) {
  PacedTransfer transfer(data.links);
  const uint64_t step = transfer.waits() ? kPacedSlice : data.send.size();
  for (uint64_t at = 0; at < data.send.size(); at += step) {
    const auto slice = data.send.subspan(at, step);
    transfer.Await(slice.size());
    EPS_RETURN_IF_ERROR(SendAll(
        socket, absl::string_view(reinterpret_cast<const char*>(slice.data()), slice.size()),
        deadline));
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(int socket, void* into, size_t size, Deadline deadline) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = recv(socket, static_cast<char*>(into) + done, size - done, MSG_DONTWAIT);
    if (n == 0) return absl::UnavailableError("the device closed its socket");
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      EPS_RETURN_IF_ERROR(Wait(socket, POLLIN, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("recv: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

// Takes the head of the next reply to command `number`, and the text of an error.
absl::Status ReceiveReply(int socket, uint64_t number, Deadline deadline, Reply* reply,
                          absl::Status* answer) {
  std::array<char, kReplyBytes> head;
  EPS_RETURN_IF_ERROR(ReceiveAll(socket, head.data(), head.size(), deadline));
  EPS_ASSIGN_OR_RETURN(*reply, DecodeReply(absl::string_view(head.data(), head.size())));
  if (reply->number != number) {
    return absl::DataLossError(
        absl::StrCat("a reply to command ", reply->number, " instead of ", number));
  }
  *answer = absl::OkStatus();
  if (reply->code == absl::StatusCode::kOk) return absl::OkStatus();
  std::string text(static_cast<size_t>(reply->bytes), '\0');
  EPS_RETURN_IF_ERROR(ReceiveAll(socket, text.data(), text.size(), deadline));
  *answer = absl::Status(reply->code, text);
  return absl::OkStatus();
}

}  // namespace

absl::Status Exchange(int socket, const Command& command, ExchangeData data, Deadline deadline,
                      absl::Status* answer) {
  EPS_RETURN_IF_ERROR(SendAll(socket, Encode(command), deadline));
  EPS_RETURN_IF_ERROR(SendData(socket, data, deadline));
  PacedTransfer transfer(data.links);
  do {
    Reply reply;
    EPS_RETURN_IF_ERROR(ReceiveReply(socket, command.number, deadline, &reply, answer));
    if (!answer->ok()) return absl::OkStatus();
    const auto size = static_cast<size_t>(reply.bytes);
    if (data.result_or_null != nullptr && size <= kMaxKernelBytes) {
      data.result_or_null->resize(size);
      return ReceiveAll(socket, data.result_or_null->data(), size, deadline);
    }
    if (size > data.receive.size() || (size == 0) != data.receive.empty()) {
      return absl::DataLossError(
          absl::StrCat(size, " bytes of data came, ", data.receive.size(), " were expected"));
    }
    EPS_RETURN_IF_ERROR(ReceiveAll(socket, data.receive.data(), size, deadline));
    transfer.Await(size);
    data.receive.remove_prefix(size);
  } while (!data.receive.empty());
  return absl::OkStatus();
}

}  // namespace eps::csd
