//! Requests that nobody should send: a clear refusal, never a panic, and memory within bounds.

use std::cell::OnceCell;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use hither_load::proto::{self, InferRequest, TensorMetadata};
use hither_load::wire::Prepared;
use http::{HeaderMap, Method};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::json;

use crate::bed::{Caller, GOOD, INFER, ROWS, Server, good_request, post};

/// The largest request that the tests' server takes.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Longer than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a server may grow by while it is attacked: buffers of some requests at their largest, and what
/// the allocator keeps.
const GROWTH_MAX: u64 = 96 << 20;

fn start() -> Server {
    Server::start("", &["--request-bytes-max", &REQUEST_BYTES_MAX.to_string()])
}

fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// A refusal that a client can act on.
fn is_refusal(answer: &str) -> bool {
    matches!(status(answer), 400 | 404 | 405 | 413) && answer.contains("\"error\":")
}

fn tensor(name: &str, datatype: &str, shape: serde_json::Value, data: serde_json::Value) -> String {
    json!({ "name": name, "datatype": datatype, "shape": shape, "data": data }).to_string()
}

fn infer(dense: &str, sparse: &str) -> Vec<u8> {
    post(INFER, "", format!("{{\"inputs\": [{dense}, {sparse}]}}").as_bytes())
}

/// Cuts, changes, repeats or inserts a few bytes.
fn mutated(good: &[u8], edits: &[(u8, prop::sample::Index, u8)]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for (kind, at, byte) in edits {
        if bytes.is_empty() {
            break;
        }
        let at = at.index(bytes.len());
        match kind % 4 {
            0 => bytes[at] = *byte,
            1 => bytes.insert(at, *byte),
            2 => drop(bytes.remove(at)),
            _ => bytes.truncate(at),
        }
    }
    bytes
}

fn edits() -> impl Strategy<Value = Vec<(u8, prop::sample::Index, u8)>> {
    prop::collection::vec((any::<u8>(), any::<prop::sample::Index>(), any::<u8>()), 0..6)
}

/// Numbers that lengths and dimensions are attacked with.
fn number() -> impl Strategy<Value = i128> {
    prop_oneof![
        any::<i64>().prop_map(i128::from),
        any::<u64>().prop_map(i128::from),
        (-4i128..200),
        Just(i128::from(u64::MAX) + 1),
        Just(1 << 40),
    ]
}

/// Runs random cases against one server, which must be well at the end.
fn each<S: Strategy>(
    cases: u32,
    strategy: S,
    test: impl Fn(&Server, S::Value) -> Result<(), TestCaseError>,
) {
    let server = start();
    let before = server.peak_bytes();
    let mut runner = TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() });
    runner.run(&strategy, |value| test(&server, value)).unwrap_or_else(|error| panic!("{error}"));
    // The kernel's count may lag by a few pages.
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes");
    server.assert_well();
}

#[test]
fn fuzzed_json_is_answered() {
    each(400, edits(), |server, edits| {
        let answer = server.raw(&post(INFER, "", &mutated(GOOD.as_bytes(), &edits)));
        prop_assert!(status(&answer) == 200 || is_refusal(&answer), "{}", answer);
        Ok(())
    });
}

#[test]
fn fuzzed_heads_are_answered() {
    // Where a head is no HTTP any more the connection may just be closed, and where it promises more
    // the server waits.
    each(60, edits(), |server, edits| {
        let patience = Duration::from_millis(150);
        let answer = server.raw_within(&mutated(&good_request(), &edits), patience);
        prop_assert!(status(&answer) < 500, "{}", answer);
        Ok(())
    });
}

#[test]
fn lying_lengths_are_refused() {
    each(200, (number(), number(), 0usize..200), |server, (size, length, bytes)| {
        let head = format!(
            r#"{{"inputs": [{{"name": "dense", "datatype": "FP32", "shape": [2, 4],
            "parameters": {{"binary_data_size": {size}}}}}]}}"#
        );
        let mut body = head.clone().into_bytes();
        body.extend(vec![7; bytes]);
        for length in [length, head.len() as i128] {
            let header = format!("Inference-Header-Content-Length: {length}\r\n");
            let answer = server.raw(&post(INFER, &header, &body));
            prop_assert!(is_refusal(&answer), "{}", answer);
        }
        Ok(())
    });
}

#[test]
fn lying_shapes_are_refused() {
    each(300, (number(), number(), number()), |server, (a, b, c)| {
        let dense = format!(
            r#"{{"name": "dense", "datatype": "FP32", "shape": [{a}, {b}], "data": [1, 2, 3, 4]}}"#
        );
        let sparse = format!(
            r#"{{"name": "sparse", "datatype": "INT64", "shape": [{c}, 3], "data": [1, 2, 3]}}"#
        );
        let answer = server.raw(&infer(&dense, &sparse));
        let is_right = (a, b, c) == (1, 4, 1);
        prop_assert!(is_right || is_refusal(&answer), "{}", answer);
        Ok(())
    });
}

#[test]
fn fuzzed_protobuf_is_answered() {
    let caller: OnceCell<Caller> = OnceCell::new();
    each(400, (edits(), number()), |server, (edits, shape)| {
        let caller = caller.get_or_init(|| Caller::new(&format!("grpc://{}", server.grpc)));
        let ids = [1, 2, 3, 4, 5, 6];
        for sparse in [vec![shape as i64, 3], vec![2, 3]] {
            let request = message(vec![2, 4], sparse, &ids);
            let code = call(caller, &mutated(&proto::framed(&request)[5..], &edits));
            // Good, invalid, unknown model, not offered, or no message at all.
            prop_assert!(matches!(code.as_str(), "0" | "3" | "5" | "12" | "13"), "{}", code);
        }
        Ok(())
    });
}

fn message(dense: Vec<i64>, sparse: Vec<i64>, ids: &[i64]) -> InferRequest {
    let tensor = |name: &str, datatype: &str, shape| TensorMetadata {
        name: name.into(),
        datatype: datatype.into(),
        shape,
    };
    let raw: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    InferRequest {
        model_name: "identity".into(),
        model_version: String::new(),
        inputs: vec![tensor("dense", "FP32", dense), tensor("sparse", "INT64", sparse)],
        raw_input_contents: vec![vec![0; 32].into(), raw.into()],
    }
}

/// Sends the bytes of a message and returns the status.
fn call(caller: &Caller, bytes: &[u8]) -> String {
    let mut body = vec![0];
    body.extend((bytes.len() as u32).to_be_bytes());
    body.extend(bytes);
    let prepared = Prepared {
        method: Method::POST,
        path: format!("{}ModelInfer", proto::SERVICE).parse().expect("a path"),
        headers: HeaderMap::new(),
        body: body.into(),
    };
    let reply = caller.send(&prepared).expect("the connection holds");
    let code = reply.headers.get("grpc-status").expect("every answer has a status");
    code.to_str().expect("it is text").to_owned()
}

#[test]
fn ids_beyond_a_table_fail_their_own_request_only() {
    let server = start();
    for id in [ROWS, -2, i64::MAX, i64::MIN] {
        let dense = tensor("dense", "FP32", json!([1, 4]), json!([1, 2, 3, 4]));
        let sparse = tensor("sparse", "INT64", json!([1, 3]), json!([1, id, 3]));
        let answer = server.raw(&infer(&dense, &sparse));
        assert!(is_refusal(&answer) && answer.contains(&id.to_string()), "{id}: {answer}");
    }
    server.assert_well();
}

#[test]
fn wrong_types_are_named() {
    let server = start();
    for (datatype, found) in [("FP64", "FP64"), ("BYTES", "BYTES"), ("INT65", "INT65"), ("", "''")]
    {
        let dense = tensor("dense", datatype, json!([1, 4]), json!([1, 2, 3, 4]));
        let sparse = tensor("sparse", "INT64", json!([1, 3]), json!([1, 2, 3]));
        let answer = server.raw(&infer(&dense, &sparse));
        assert!(is_refusal(&answer) && answer.contains(found), "{answer}");
    }
    server.assert_well();
}

#[test]
fn bodies_beyond_the_limit_are_refused_and_not_kept() {
    let server = start();
    let before = server.peak_bytes();
    // One that says so, one that does not, and one that grows when it is decompressed.
    let claim = 2 * REQUEST_BYTES_MAX;
    let head = format!(
        "POST {INFER} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {claim}\r\n\r\n"
    );
    assert_eq!(status(&server.raw(head.as_bytes())), 413);
    let mut chunked = format!(
        "POST {INFER} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    for _ in 0..32 {
        chunked.extend(format!("{:x}\r\n", 1 << 16).bytes());
        chunked.extend(vec![b' '; 1 << 16]);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    // The answer may be lost: the server closes while bytes are still on their way.
    assert!(matches!(status(&server.raw(&chunked)), 0 | 413));
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..512 {
        packer.write_all(&vec![b' '; 1 << 20]).expect("memory");
    }
    let bomb = packer.finish().expect("memory");
    assert!(bomb.len() < REQUEST_BYTES_MAX, "{} bytes become half a gigabyte", bomb.len());
    for _ in 0..8 {
        let answer = server.raw(&post(INFER, "Content-Encoding: gzip\r\n", &bomb));
        assert_eq!(status(&answer), 413, "{answer}");
    }
    // The kernel's count may lag by a few pages.
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes");
    server.assert_well();
}

/// A request that is as large as it may be.
fn largest_request() -> Vec<u8> {
    let good = good_request();
    let at = good.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let mut body = good[at..].to_vec();
    body.resize(REQUEST_BYTES_MAX, b' ');
    body
}

/// Bytes that all requests of the tests' server may hold together: sixteen of the largest.
const BUDGET_BYTES: u64 = 16 * REQUEST_BYTES_MAX as u64;
/// What a server under attack may grow by beyond its budget.
const BEYOND_BUDGET_MAX: u64 = 64 << 20;

/// Runs an attack, and sees that the server's memory stays near its budget.
fn assert_within_budget<T>(server: &Server, attack: impl FnOnce() -> T) -> T {
    let before = server.peak_bytes();
    let result = attack();
    // The kernel's count may lag by a few pages.
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown <= BUDGET_BYTES + BEYOND_BUDGET_MAX, "{grown} bytes");
    result
}

/// The same bytes from so many connections at once. Returns the statuses; 0 where an answer was lost because
/// the server closed while bytes were still on their way.
fn at_once(server: &Server, count: usize, bytes: &[u8]) -> Vec<u16> {
    std::thread::scope(|scope| {
        let asked = (0..count).map(|_| scope.spawn(|| status(&server.raw_within(bytes, PATIENCE))));
        let asked: Vec<_> = asked.collect();
        asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
    })
}

#[test]
fn bodies_in_chunks_of_one_byte_count_as_their_bytes() {
    let server = start();
    let mut chunked = format!(
        "POST {INFER} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    for byte in &largest_request()[..REQUEST_BYTES_MAX / 8] {
        chunked.extend([b'1', b'\r', b'\n', *byte, b'\r', b'\n']);
    }
    chunked.extend(b"0\r\n\r\n");
    let answers = assert_within_budget(&server, || at_once(&server, 8, &chunked));
    assert_eq!(answers, [200; 8]);
    server.assert_well();
}

#[test]
fn bombs_are_counted_as_what_they_become() {
    let server = start();
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..256 {
        packer.write_all(&vec![b' '; 1 << 20]).expect("memory");
    }
    let bomb = packer.finish().expect("memory");
    assert!(bomb.len() < REQUEST_BYTES_MAX, "{} bytes become 256 MB", bomb.len());
    let over_http = post(INFER, "Content-Encoding: gzip\r\n", &bomb);
    let answers = assert_within_budget(&server, || at_once(&server, 64, &over_http));
    assert!(answers.iter().all(|status| matches!(status, 0 | 413 | 503)), "{answers:?}");
    assert!(answers.contains(&413), "{answers:?}");
    // A message of gRPC, compressed: the flag says so.
    let mut message = vec![1];
    message.extend((bomb.len() as u32).to_be_bytes());
    message.extend(&bomb);
    assert_within_budget(&server, || {
        std::thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| call_streams(&server.grpc, "ModelInfer", 1, &message, true));
            }
        });
    });
    server.assert_well();
}

/// Each stream holds a message that is whole but for its last byte.
#[test]
fn streams_that_stall_before_their_end_share_the_budget() {
    let server = start();
    let mut message = vec![0];
    message.extend((REQUEST_BYTES_MAX as u32).to_be_bytes());
    message.resize(message.len() + REQUEST_BYTES_MAX - 1, 0);
    assert_within_budget(&server, || {
        let open: Vec<TcpStream> = std::thread::scope(|scope| {
            // Ten streams of a connection fit its window of flow control.
            let call = || call_streams(&server.grpc, "ModelStreamInfer", 10, &message, false);
            let connections: Vec<_> = (0..100).map(|_| scope.spawn(call)).collect();
            connections.into_iter().map(|one| one.join().expect("sent")).collect()
        });
        assert_eq!(open.len(), 100);
        // A hundred connections may take the whole budget between them; another client is told to come later.
        assert!(matches!(status(&server.raw(&good_request())), 200 | 503));
    });
    let begin = Instant::now();
    while status(&server.raw(&good_request())) == 503 {
        assert!(begin.elapsed() < Duration::from_secs(30), "their bytes are still counted");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.assert_well();
}

/// Requests hold their share of the budget until they are answered, also inflated ones; what exceeds it is
/// told to come later.
#[test]
fn requests_that_wait_share_one_budget() {
    let words = ["--request-bytes-max", &REQUEST_BYTES_MAX.to_string()];
    let server = Server::start("[batching]\nwindow_us = 3000000\n", &words);
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(&largest_request()).expect("memory");
    let packed = packer.finish().expect("memory");
    for body in
        [post(INFER, "", &largest_request()), post(INFER, "Content-Encoding: gzip\r\n", &packed)]
    {
        let answers = assert_within_budget(&server, || at_once(&server, 64, &body));
        let count = |status: u16| answers.iter().filter(|one| **one == status).count();
        // Sixteen of the largest fit; buffers that grow in steps leave room for fewer.
        assert!((8..=16).contains(&count(200)), "{answers:?}");
        // A refusal may be lost: the server closes while bytes are still on their way.
        assert!(count(503) > 0 && count(200) + count(503) + count(0) == 64, "{answers:?}");
    }
}

#[test]
fn promised_bytes_that_never_come_take_no_memory() {
    let server = start();
    let before = server.peak_bytes();
    let head =
        format!("POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {REQUEST_BYTES_MAX}\r\n\r\n");
    let promised: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(head.as_bytes()).expect("the server listens");
            stream
        })
        .collect();
    server.assert_well();
    // A buffer of the promised size for each would be twice as much.
    // The kernel's count may lag by a few pages.
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes for {} promises", promised.len());
    // Half of them end in the middle of their body.
    promised.iter().step_by(2).for_each(|stream| drop(stream.shutdown(Shutdown::Write)));
    drop(promised);
    server.assert_well();
}

#[test]
fn half_closed_connections_are_answered_or_closed() {
    let server = start();
    for cut in [good_request().len(), 200, 30, 0] {
        let mut stream = server.connect();
        stream.write_all(&good_request()[..cut]).expect("the server listens");
        stream.shutdown(Shutdown::Write).expect("one half is closed");
        let begin = Instant::now();
        let answer = server.read(&mut stream);
        assert!(begin.elapsed() < Duration::from_secs(5), "{cut}: left open");
        assert!(answer.is_empty() || status(&answer) < 500, "{cut}: {answer}");
    }
    server.assert_well();
}

#[test]
fn slow_clients_keep_nobody_out_and_are_cut_off() {
    let server = start();
    let begin = Instant::now();
    let mut slow: Vec<TcpStream> = (0..300).map(|_| server.connect()).collect();
    for (i, stream) in slow.iter_mut().enumerate() {
        let half: &[u8] = if i % 2 == 0 { b"POST /v2/models/iden" } else { b"PRI * HTTP/2.0\r\n" };
        stream.write_all(half).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(40))).expect("a time limit");
    }
    server.assert_well();
    // The head of a request must come within ten seconds.
    let mut rest = Vec::new();
    let ended = slow[0].read_to_end(&mut rest);
    assert!(ended.is_ok(), "still open after {:?}", begin.elapsed());
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{rest:?}");
    server.assert_well();
}

/// A frame of HTTP/2: length, kind, flags, stream, payload.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Opens calls on a connection of their own and sends the same bytes on each; `is_ended` says that no more
/// will come. Returns the connection. The server may close it, or end calls, at any time.
fn call_streams(
    address: &str,
    method: &str,
    streams: u32,
    bytes: &[u8],
    is_ended: bool,
) -> TcpStream {
    let text = |name: &[u8], value: &str| [name, &[value.len() as u8], value.as_bytes()].concat();
    // :method POST and :scheme http of HPACK's static table; names by their number there, or as they are.
    let path = format!("/inference.GRPCInferenceService/{method}");
    let head = [
        vec![0x83, 0x86],
        text(&[0x04], &path),
        text(&[0x01], "x"),
        text(&[0x0f, 0x10], "application/grpc"),
        text(b"\0\x02te", "trailers"),
        text(b"\0\x0dgrpc-encoding", "gzip"),
    ]
    .concat();
    let mut connection = TcpStream::connect(address).expect("the server listens");
    connection.set_write_timeout(Some(Duration::from_secs(20))).expect("a time limit");
    let mut send = |bytes: &[u8]| connection.write_all(bytes).is_ok();
    send(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat());
    for i in 0..streams {
        let stream = 2 * i + 1;
        let mut is_open = send(&frame(HEADERS, END_HEADERS, stream, &head));
        for part in bytes.chunks(FRAME_BYTES_MAX) {
            is_open = is_open && send(&frame(DATA, 0, stream, part));
        }
        if is_ended && is_open {
            send(&frame(DATA, END_STREAM, stream, &[]));
        }
    }
    connection
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const END_STREAM: u8 = 1;
const FRAME_BYTES_MAX: usize = 16_384;

/// Sends frames until the server closes the connection or `count` are sent. Returns whether it closed,
/// at the latest some time after the last.
fn flood(
    address: &str,
    count: u32,
    patience: Duration,
    mut next: impl FnMut(u32) -> Vec<u8>,
) -> bool {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_write_timeout(Some(Duration::from_secs(5))).expect("a time limit");
    stream.set_read_timeout(Some(patience)).expect("a time limit");
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).expect("it listens");
    for i in 0..count {
        if stream.write_all(&next(i)).is_err() {
            return true;
        }
    }
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).is_ok()
}

#[test]
fn floods_of_http2_frames_do_no_harm() {
    let server = start();
    let before = server.peak_bytes();
    // :method POST, :scheme http, :path / of HPACK's static table.
    let head = [0x83, 0x86, 0x84];
    let reset = |i: u32| {
        let stream = 2 * i + 1;
        [frame(HEADERS, END_HEADERS, stream, &head), frame(RESET, 0, stream, &8u32.to_be_bytes())]
            .concat()
    };
    let (short, long) = (Duration::from_millis(200), Duration::from_secs(10));
    assert!(
        flood(&server.grpc, 200_000, long, reset),
        "requests that are reset at once are cut off"
    );
    flood(&server.grpc, 50_000, short, |_| frame(PING, 0, 0, &[0; 8]));
    flood(&server.grpc, 50_000, short, |_| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]));
    // A head that never ends.
    let endless = |i: u32| match i {
        0 => frame(HEADERS, 0, 1, &head),
        _ => frame(CONTINUATION, 0, 1, &[0x84; 16_000]),
    };
    assert!(flood(&server.grpc, 5_000, long, endless), "an endless head is cut off");
    // More requests at once than a connection may have.
    flood(&server.grpc, 20_000, short, |i| frame(HEADERS, END_HEADERS, 2 * i + 1, &head));
    // The kernel's count may lag by a few pages.
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes");
    server.assert_well();
}

#[test]
fn garbage_on_every_port_is_survived() {
    let server = start();
    let garbage: Vec<u8> =
        (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for address in [&server.http, &server.grpc, &server.metrics] {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        let _ = stream.write_all(&garbage);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    server.assert_well();
}
