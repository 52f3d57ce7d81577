#include "wire/http/http_server.h"

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "wire/http/testing/http_get.h"

namespace eps {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Answers with what it was asked.
HttpAnswer Echo(const HttpRequest& request) {
  std::string body = absl::StrCat(request.path, "|", request.host);
  for (const auto& [key, value] : request.query) absl::StrAppend(&body, "|", key, "=", value);
  return {request.path == "/lost" ? 404 : 200, body, "text/plain", {{"X-Further", "yes"}}};
}

TEST(HttpServer, GivesTheRequestToTheHandler) {
  const auto server = HttpServer::Start("127.0.0.1:0", Echo);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string& address = (*server)->address();
  const std::string answer = HttpGet(address, "/a%20b?step=3&last&x=%26");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, EndsWith(absl::StrCat("\r\n\r\n/a b|", address, "|last=|step=3|x=&")));
  for (const char* header : {"Content-Type: text/plain", "Cache-Control: no-store",
                             "X-Content-Type-Options: nosniff", "X-Further: yes"}) {
    EXPECT_THAT(answer, HasSubstr(absl::StrCat(header, "\r\n")));
  }
  EXPECT_THAT(HttpGet(address, "/lost"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Exchange(address, "GET /x HTTP/1.0\r\n\r\n"), EndsWith("\r\n\r\n/x|"));
}

TEST(HttpServer, HeadHasNoBody) {
  const auto server = HttpServer::Start("127.0.0.1:0", Echo);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string answer = Exchange((*server)->address(), "HEAD /abc HTTP/1.0\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 5\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n"));
}

TEST(HttpServer, TakesNothingButQuestions) {
  std::atomic<int> asked{0};
  const auto server = HttpServer::Start("127.0.0.1:0", [&](const HttpRequest&) {
    ++asked;
    return HttpAnswer{200, "answered"};
  });
  ASSERT_TRUE(server.ok()) << server.status();
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"}) {
    EXPECT_THAT(Exchange((*server)->address(),
                         absl::StrCat(method, " / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc")),
                StartsWith("HTTP/1.1 405 "))
        << method;
  }
  const std::string body = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
  EXPECT_THAT(Exchange((*server)->address(), body), Not(HasSubstr("answered")));
  EXPECT_EQ(asked, 0);
}

TEST(HttpServer, RefusesWhatIsNotARequest) {
  const auto server = HttpServer::Start("127.0.0.1:0", Echo);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string& address = (*server)->address();
  const std::string large(64 << 10, 'a');
  for (const std::string& bytes :
       {std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), std::string("\x16\x03\x01\x02\r\n\r\n"),
        absl::StrCat("GET /", large, " HTTP/1.0\r\n\r\n"),
        absl::StrCat("GET / HTTP/1.0\r\nA: ", large, "\r\n\r\n")}) {
    EXPECT_FALSE(absl::StartsWith(Exchange(address, bytes), "HTTP/1.1 200"));
  }
  EXPECT_THAT(HttpGet(address, "/still"), HasSubstr("/still"));
}

TEST(HttpServer, AnswersWhileAnotherRequestWaits) {
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  const auto server = HttpServer::Start("127.0.0.1:0", [released](const HttpRequest& request) {
    if (request.path == "/slow") released.wait();
    return HttpAnswer{200, request.path};
  });
  ASSERT_TRUE(server.ok()) << server.status();
  std::string slow;
  std::thread waiting([&] { slow = HttpGet((*server)->address(), "/slow"); });
  EXPECT_THAT(HttpGet((*server)->address(), "/fast"), EndsWith("/fast"));
  release.set_value();
  waiting.join();
  EXPECT_THAT(slow, EndsWith("/slow"));
}

TEST(HttpServer, ListensOnEveryAddressOfAName) {
  const auto server = HttpServer::Start("localhost:0", Echo);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT((*server)->address(), StartsWith("localhost:"));
  EXPECT_THAT(HttpGet((*server)->address(), "/"), HasSubstr("200"));
  EXPECT_FALSE(HttpServer::Start((*server)->address(), Echo).ok()) << "the port is taken";
}

}  // namespace
}  // namespace eps
