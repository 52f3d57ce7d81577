"""Drives a real server process with a plain Python gRPC client.

The client uses the .proto files and nothing else of the project, so the test covers the protocol
alone: Hello, a job, weights, a step, fetch, push with credit and acks.
"""

import queue
import struct
import subprocess
import sys
import threading
import unittest

import grpc

from eps.v1 import control_pb2, control_pb2_grpc, data_pb2, data_pb2_grpc, types_pb2

SERVE, PRINT_SPEC = sys.argv[1:3]
TIMEOUT_S = 30
SLICE = 6000  # bytes; so small that even small chunks need several slices
FP32 = 1  # docs/formats/codecs.md


def crc32c(data):
    """Computes the Castagnoli CRC bit by bit, independently of the server's implementation."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Sender:
    """The request side of a stream: sends what is put, until close()."""

    def __init__(self):
        self._queue = queue.Queue()

    def put(self, message):
        self._queue.put(message)

    def close(self):
        self._queue.put(None)

    def __iter__(self):
        return iter(self._queue.get, None)


def header(job_id, tag, chunk, use_stage, part, data, nonce):
    return data_pb2.PushFrame(header=data_pb2.PushHeader(
        tag=tag, codec=FP32, bytes=len(data), crc32c=crc32c(data), tokens=64, worker_nonce=nonce,
        key=types_pb2.ContributionKey(job_id=job_id, term=1, step=1, use_stage=use_stage,
                                      part_first=part, part_count=1, chunk=chunk)))


def slices(tag, data):
    for offset in range(0, len(data), SLICE):
        piece = data[offset:offset + SLICE]
        yield data_pb2.PushFrame(tag=tag, offset=offset, data=piece,
                                 last=offset + len(piece) == len(data))


class Crc(unittest.TestCase):
    def test_the_published_check_value(self):
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)


class PythonClient(unittest.TestCase):
    """Takes one job through its first step; the tests run in the order of their names."""

    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen([SERVE, "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
        watchdog = threading.Timer(TIMEOUT_S * 4, cls.server.kill)
        watchdog.daemon = True
        watchdog.start()
        line = cls.server.stdout.readline()
        assert line.startswith("eps serve: listening on "), line
        cls.address = line.split()[-1]
        cls.channel = grpc.insecure_channel(cls.address)
        cls.control = control_pb2_grpc.ControlStub(cls.channel)
        cls.data = data_pb2_grpc.DataStub(cls.channel)
        cls.spec = subprocess.run([PRINT_SPEC], stdout=subprocess.PIPE, check=True,
                                  timeout=TIMEOUT_S).stdout
        # The id is the start of the spec's digest; the server returns it too.
        cls.job_id = cls.control.CreateJob(control_pb2.CreateJobRequest(
            request_id="create", spec_text=cls.spec, servers=[cls.address]),
            timeout=TIMEOUT_S).job_id

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.terminate()
        code = cls.server.wait(timeout=TIMEOUT_S)
        cls.server.stdout.close()
        assert code == 143, f"the server of an unfinished job ended with {code}"

    def assert_code(self, code, call, *args, **kwargs):
        with self.assertRaises(grpc.RpcError) as caught:
            call(*args, timeout=TIMEOUT_S, **kwargs)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception.details()

    def test_1_hello(self):
        reply = self.control.Hello(control_pb2.HelloRequest(
            request_id="hello", min_protocol=1, max_protocol=1, client="python"),
            timeout=TIMEOUT_S)
        self.assertEqual(reply.protocol, 1)
        self.assertIn("fp32", reply.codecs)
        details = self.assert_code(
            grpc.StatusCode.FAILED_PRECONDITION, self.control.Hello,
            control_pb2.HelloRequest(request_id="new", min_protocol=9, max_protocol=9))
        self.assertIn("[request new]", details)

    def test_2_create_job_is_idempotent(self):
        request = control_pb2.CreateJobRequest(request_id="again", spec_text=self.spec,
                                               servers=[self.address])
        reply = self.control.CreateJob(request, timeout=TIMEOUT_S)
        self.assertEqual(reply.job_id, self.job_id)
        self.assertEqual(reply.state, control_pb2.JOB_STATE_IMPORTING)
        request.spec_text = self.spec.replace(b"training.seed = 42", b"training.seed = 43")
        self.assert_code(grpc.StatusCode.ALREADY_EXISTS, self.control.CreateJob, request)

    def test_3_initialize_join_and_begin(self):
        def messages():
            yield control_pb2.ImportStateRequest(job_id=self.job_id, initialize=True)
            yield control_pb2.ImportStateRequest(finish=True)
        reply = self.control.ImportState(messages(), timeout=TIMEOUT_S)
        self.assertGreater(reply.chunks, 4)
        joined = self.control.Join(control_pb2.JoinRequest(
            job_id=self.job_id, worker_nonce=7, compute_profile="python"), timeout=TIMEOUT_S)
        self.assertEqual(joined.spec_text, self.spec)
        self.assertEqual([(l.part, l.generation) for l in joined.leases], [(0, 1), (1, 1)])
        beat = control_pb2.Beat(job_id=self.job_id, worker_nonce=7, term=1, waits=True)
        beats = queue.Queue()
        beats.put(beat)
        session = self.control.Session(iter(beats.get, None), timeout=TIMEOUT_S)
        notice = next(session)
        self.assertEqual(notice.leases, joined.leases)
        self.assertEqual(notice.lease_ms, joined.lease_ms)
        beat.leave = True
        beats.put(beat)
        self.assertEqual(list(session), [])
        beats.put(None)
        self.assertEqual(list(joined.servers), [self.address])
        begun = self.data.BeginStep(data_pb2.BeginStepRequest(
            job_id=self.job_id, term=1, step=1, parts=[0, 1], worker_nonce=7), timeout=TIMEOUT_S)
        self.assertEqual((begun.step, begun.version, begun.done), (1, 0, False))
        self.assertEqual(len(begun.codecs), reply.chunks)
        self.assertEqual({c.gradient for c in begun.codecs}, {FP32})
        self.assertFalse(begun.have)

    def fetch(self, stage, version=0):
        """Returns {chunk: bytes}, with slices joined and checked."""
        request = data_pb2.FetchRequest(tag=5, job_id=self.job_id, term=1, stage=stage,
                                        version=version, **{"pass": types_pb2.PASS_FORWARD})
        chunks = {}
        # The server ends the stream, because the client has closed its side.
        for piece in self.data.Fetch(iter([request]), timeout=TIMEOUT_S):
            self.assertEqual(piece.code, 0, piece.message)
            self.assertEqual((piece.tag, piece.version, piece.codec), (5, version, FP32))
            data = chunks.get(piece.chunk, b"")
            self.assertEqual(piece.offset, len(data))
            chunks[piece.chunk] = data + piece.data
            if piece.last:
                self.assertEqual(len(chunks[piece.chunk]), piece.total_bytes)
                self.assertEqual(crc32c(chunks[piece.chunk]), piece.crc32c)
        return chunks

    def test_4_fetch(self):
        chunks = self.fetch(stage=0)
        self.assertEqual(sorted(len(data) for data in chunks.values()), [64 * 4, 64 * 64 * 4])
        weights = max(chunks.values(), key=len)
        values = struct.unpack(f"<{len(weights) // 4}f", weights)
        self.assertLess(max(map(abs, values)), 1.0)
        self.assertGreater(len(set(values)), 4000, "each initial value is drawn separately")
        bad = next(self.data.Fetch(iter([data_pb2.FetchRequest(
            tag=6, job_id=self.job_id, term=1, stage=99)]), timeout=TIMEOUT_S))
        self.assertEqual(bad.code, grpc.StatusCode.INVALID_ARGUMENT.value[0])

    def test_5_push(self):
        chunk, weights = max(self.fetch(stage=1).items(), key=lambda item: len(item[1]))
        gradient = struct.pack("<f", 0.25) * (len(weights) // 4)
        other = struct.pack("<f", 0.5) * (len(weights) // 4)
        sender = Sender()
        replies = self.data.Push(iter(sender), timeout=TIMEOUT_S)

        def push(tag, part, data, nonce):
            sender.put(header(self.job_id, tag, chunk, 1, part, data, nonce))
            reply = next(replies)
            self.assertEqual(reply.tag, tag)
            if reply.HasField("credit"):
                for frame in slices(tag, data):
                    sender.put(frame)
                reply = next(replies)
                self.assertEqual(reply.tag, tag)
            return data_pb2.Ack.Outcome.Name(reply.ack.outcome), reply.ack.message

        self.assertEqual(push(1, 0, gradient, 7)[0], "ACCEPTED")
        self.assertEqual(push(2, 0, gradient, 7)[0], "DUPLICATE")
        self.assertEqual(push(3, 0, other, 8)[0], "DUPLICATE")
        self.assertEqual(push(4, 0, other, 7)[0], "CONFLICT")
        outcome, message = push(5, 1, other[:-4], 7)
        self.assertEqual(outcome, "REFUSED", message)
        self.assertIn("expected %d" % len(other), message)
        self.assertEqual(push(6, 1, other, 7)[0], "ACCEPTED")
        sender.close()
        self.assertEqual(list(replies), [])
        self.assertEqual(replies.code(), grpc.StatusCode.OK)
        counters = self.control.Status(control_pb2.StatusRequest(), timeout=TIMEOUT_S).counters
        self.assertEqual(counters["accepted"], 2)
        self.assertEqual(counters["conflict"], 1)

    def test_6_accepts_fields_in_any_order(self):
        chunk, weights = max(self.fetch(stage=2).items(), key=lambda item: len(item[1]))
        gradient = struct.pack("<f", 1.0) * (len(weights) // 4)
        raw = self.channel.stream_stream(
            "/eps.v1.Data/Push", request_serializer=bytes,
            response_deserializer=data_pb2.PushReply.FromString)
        sender = Sender()
        replies = raw(iter(sender), timeout=TIMEOUT_S)
        sender.put(header(self.job_id, 1, chunk, 2, 0, gradient, 7).SerializeToString())
        self.assertTrue(next(replies).HasField("credit"))
        for frame in slices(1, gradient):
            data = data_pb2.PushFrame(data=frame.data).SerializeToString()
            frame.ClearField("data")
            sender.put(data + frame.SerializeToString())  # the payload first
        self.assertEqual(next(replies).ack.outcome, data_pb2.Ack.ACCEPTED)
        sender.close()
        self.assertEqual(list(replies), [])

    def test_7_payload_without_credit_closes_the_stream(self):
        replies = self.data.Push(iter([data_pb2.PushFrame(tag=1, data=b"x")]), timeout=TIMEOUT_S)
        with self.assertRaises(grpc.RpcError) as caught:
            next(replies)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("without credit", caught.exception.details())

    def test_8_a_non_finite_gradient_ends_the_job(self):
        chunk, weights = max(self.fetch(stage=2).items(), key=lambda item: len(item[1]))
        gradient = struct.pack("<f", 2.0**51) * (len(weights) // 4)
        sender = Sender()
        replies = self.data.Push(iter(sender), timeout=TIMEOUT_S)
        sender.put(header(self.job_id, 1, chunk, 2, 1, gradient, 7))
        self.assertTrue(next(replies).HasField("credit"))
        for frame in slices(1, gradient):
            sender.put(frame)
        ack = next(replies).ack
        self.assertEqual(ack.outcome, data_pb2.Ack.REFUSED)
        for text in ("step 1", "layer.2", "part 1", "is not finite", "training.nonfinite=skip"):
            self.assertIn(text, ack.message)
        sender.close()
        status = self.control.Status(control_pb2.StatusRequest(), timeout=TIMEOUT_S)
        self.assertEqual(status.state, control_pb2.JOB_STATE_FAILED)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
