//! A server that stalls once, measured in both loops: only the open one may tell how bad it was.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hither_load::describe::Model;
use hither_load::drive::{Arrivals, Client, Level, Settings, runtime};
use hither_load::measure::Figures;
use hither_load::request::InferRequest;
use hither_load::wire::Connections;

const STALL: Duration = Duration::from_millis(400);
/// The inference request that stalls.
const STALLED: usize = 60;

/// Answers everything with an empty 200, one request at a time, and returns its address.
fn stalling_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let count = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let count = Arc::clone(&count);
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
                loop {
                    let (mut length, mut is_infer, mut line) = (0, false, String::new());
                    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                        is_infer |= line.starts_with("POST");
                        let text = line.to_ascii_lowercase();
                        if let Some(value) = text.strip_prefix("content-length:") {
                            length = value.trim().parse().expect("a number");
                        }
                        line.clear();
                    }
                    if reader.read_exact(&mut vec![0; length]).is_err() || line.is_empty() {
                        return;
                    }
                    if is_infer && count.fetch_add(1, Ordering::Relaxed) == STALLED {
                        std::thread::sleep(STALL);
                    }
                    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
                    if (&stream).write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn measured(level: Level) -> Figures {
    let target = format!("http://{}", stalling_server()).parse().expect("an address");
    let model = Model { name: "m".into(), version: String::new() };
    let request = InferRequest::new(hither_load::wire::Protocol::Http, &model, 1, &[]);
    let connections = Connections::new(target, None, 1);
    let client = Client::new(runtime(1).expect("a thread"), connections, model, vec![request]);
    let settings = Settings {
        // None: a fast closed loop would reach the stall before the first window.
        warmup: Duration::ZERO,
        window: Duration::from_millis(1000),
        windows: 1,
        windows_max: 1,
        stability: 0.1,
        stolen_max: f64::INFINITY,
        slo: Some(Duration::from_millis(100)),
        timeout: Duration::from_secs(10),
        in_flight_max: 1,
        seed: 0,
    };
    client.measure(level, &settings, |_| {}).figures
}

#[test]
fn an_open_loop_counts_every_request_that_a_stall_delays() {
    let open = measured(Level::Open { rate: 200.0, arrivals: Arrivals::Constant });
    // 200 requests were due; some 80 of them during the stall, 60 of these more than 100 ms before its
    // end. One connection at a time, so all of them wait in the client.
    assert!(open.requests >= 190, "{open:?}");
    assert_eq!(open.answered, open.requests, "{open:?}");
    assert!(open.latency.p90_us > 100e3, "{open:?}");
    assert!(open.good_per_s <= 160.0, "{open:?}");
    // A closed loop sees one slow request of many.
    let closed = measured(Level::Closed { concurrency: 1 });
    assert!(closed.requests > 200 && closed.latency.p90_us < 100e3, "{closed:?}");
    assert!(closed.latency.max_us > 390e3, "{closed:?}");
}
