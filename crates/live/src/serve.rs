//! The scheduler's window: a few pages over HTTP, on a socket in its state directory for commands
//! on the same host, and on a port for browsers and Prometheus. It only answers; it takes no orders
//! but to look again.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A client that is slower than this is cut off.
const PATIENCE: Duration = Duration::from_secs(10);
/// No request that we understand is longer.
const REQUEST_BYTES_MAX: u64 = 8192;

pub const PAGE: &str = include_str!("page.html");

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub kind: &'static str,
    pub body: String,
}

impl Answer {
    pub fn json(value: &impl serde::Serialize) -> Self {
        let body = serde_json::to_string(value).expect("plain values");
        Self { status: 200, kind: "application/json", body }
    }

    pub fn text(status: u16, body: &str) -> Self {
        Self { status, kind: "text/plain; version=0.0.4; charset=utf-8", body: body.into() }
    }
}

/// A question to the driver, answered between two looks.
#[derive(Debug)]
pub struct Question {
    pub path: String,
    answer: Sender<Answer>,
}

impl Question {
    pub fn answer(self, answer: Answer) {
        // Whoever asked may have gone.
        let _ = self.answer.send(answer);
    }
}

/// The scheduler is unwell if it has not seen the cluster for so long.
const UNWELL: Duration = Duration::from_secs(60);

/// Where questions arrive. Threads answer what they can themselves: whether the scheduler is well must not depend
/// on a look at the cluster that takes long.
pub struct Window {
    pub questions: Receiver<Question>,
    desk: Desk,
}

#[derive(Clone)]
struct Desk {
    send: Sender<Question>,
    /// When the cluster last answered.
    looked: Arc<Mutex<Option<Instant>>>,
}

impl Window {
    pub fn new() -> Self {
        let (send, questions) = mpsc::channel();
        Self { questions, desk: Desk { send, looked: Arc::default() } }
    }

    /// The cluster has just answered.
    pub fn has_looked(&self) {
        *self.desk.looked.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            Some(Instant::now());
    }

    /// Listens on a socket; one that a killed scheduler left is replaced. All users of the host may ask.
    pub fn listen_at(&self, path: &Path) -> std::io::Result<()> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        let send = self.desk.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = stream.set_read_timeout(Some(PATIENCE));
                let _ = stream.set_write_timeout(Some(PATIENCE));
                let send = send.clone();
                thread::spawn(move || converse(&stream, &stream, &send));
            }
        });
        Ok(())
    }

    /// Listens on a port; returns the address.
    pub fn listen_on(&self, address: &str) -> std::io::Result<String> {
        let listener = TcpListener::bind(address)?;
        let bound = listener.local_addr()?.to_string();
        let send = self.desk.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = stream.set_read_timeout(Some(PATIENCE));
                let _ = stream.set_write_timeout(Some(PATIENCE));
                let send = send.clone();
                thread::spawn(move || converse(&stream, &stream, &send));
            }
        });
        Ok(bound)
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

/// One request, one answer.
fn converse(read: impl Read, mut write: impl Write, desk: &Desk) {
    let mut lines = BufReader::new(read.take(REQUEST_BYTES_MAX)).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    // The rest of the head says nothing that matters, but has to be taken off the line.
    lines.by_ref().take_while(|line| !line.is_empty()).for_each(drop);
    let answer = match first.split(' ').collect::<Vec<_>>()[..] {
        ["GET" | "HEAD", "/", _] => {
            Answer { status: 200, kind: "text/html; charset=utf-8", body: PAGE.into() }
        }
        ["GET" | "HEAD", "/healthz", _] => desk.health(),
        ["GET" | "HEAD", path, _] => desk.ask(path),
        [_, _, _] => Answer::text(405, "only GET is understood\n"),
        _ => Answer::text(400, "not a request\n"),
    };
    let Answer { status, kind, body } = answer;
    let words = if status == 200 { "OK" } else { "Not OK" };
    let shown = if first.starts_with("HEAD ") { "" } else { &body };
    let _ = write!(
        write,
        "HTTP/1.1 {status} {words}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n{shown}",
        body.len()
    );
}

impl Desk {
    fn health(&self) -> Answer {
        let looked = *self.looked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match looked.is_some_and(|looked| looked.elapsed() < UNWELL) {
            true => Answer::text(200, "ok\n"),
            false => Answer::text(503, "the cluster does not answer\n"),
        }
    }

    fn ask(&self, path: &str) -> Answer {
        let (answer, receive) = mpsc::channel();
        let asked = self.send.send(Question { path: path.into(), answer });
        let answered = asked.ok().and_then(|()| receive.recv_timeout(PATIENCE).ok());
        answered.unwrap_or_else(|| Answer::text(503, "the scheduler is busy\n"))
    }
}

/// Asks a scheduler on this host through its socket: the status and the body.
pub fn get(socket: &Path, path: &str) -> std::io::Result<(u16, String)> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(2 * PATIENCE))?;
    ask(&stream, path)
}

/// Asks a scheduler at an address such as `http://scheduler:9433` or `scheduler:9433`.
pub fn get_from(address: &str, path: &str) -> std::io::Result<(u16, String)> {
    let address = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(2 * PATIENCE))?;
    ask(&stream, path)
}

fn ask<S>(mut stream: &S, path: &str) -> std::io::Result<(u16, String)>
where
    for<'a> &'a S: Read + Write,
{
    write!(stream, "GET {path} HTTP/1.1\r\nHost: hither\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let wrong = || std::io::Error::other("the scheduler's answer cannot be understood");
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(wrong)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(wrong)?;
    Ok((status, body.to_owned()))
}
