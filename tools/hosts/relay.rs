//! Joins network namespaces by links of a stated delay and rate, where the kernel has no netem:
//! each namespace has a TUN device whose other end is here.
//!
//!     relay PREFIX COUNT DELAY_US MBIT_PER_S
//!
//! makes the devices PREFIX0, PREFIX1, …, prints "ready", and forwards IPv4 packets by the last
//! byte of the destination (1 is device 0) until its standard input ends. A packet leaves its
//! device's sending side after all before it, at the rate, and arrives DELAY_US later; each device
//! sends and receives at the full rate. Reports on standard error by how much packets arrived later
//! than that.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::raw::{c_int, c_short, c_ulong};
use std::time::{Duration, Instant};

const TUNSETIFF: c_ulong = 0x4004_54ca;
const IFF_TUN: c_short = 1;
const IFF_NO_PI: c_short = 0x1000;
const F_SETFL: c_int = 4;
const O_NONBLOCK: c_int = 0o4000;
const POLLIN: c_short = 1;
const PR_SET_TIMERSLACK: c_int = 29;

/// Packets that wait for their time in one device: more are dropped, as a switch does.
const QUEUE: usize = 4096;

/// Shorter waits are spent looking: a sleep takes about as long to end.
const AWAKE: Duration = Duration::from_micros(150);

#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: c_short,
    rest: [u8; 22],
}

#[repr(C)]
struct PollFd {
    fd: c_int,
    events: c_short,
    revents: c_short,
}

#[repr(C)]
struct TimeSpec {
    seconds: i64,
    nanos: i64,
}

unsafe extern "C" {
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut InterfaceRequest) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: c_int) -> c_int;
    fn ppoll(fds: *mut PollFd, count: c_ulong, timeout: *const TimeSpec, signals: *const u8) -> c_int;
    fn prctl(option: c_int, argument: c_ulong) -> c_int;
}

struct Device {
    file: File,
    /// When its sending side has sent everything so far.
    free: Instant,
}

struct Packet {
    to: usize,
    due: Instant,
    bytes: Vec<u8>,
}

fn open(name: &str) -> std::io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let mut request = InterfaceRequest { name: [0; 16], flags: IFF_TUN | IFF_NO_PI, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the request is the 40 bytes of a struct ifreq; the file is open.
    let done = unsafe {
        ioctl(file.as_raw_fd(), TUNSETIFF, &mut request) == 0 && fcntl(file.as_raw_fd(), F_SETFL, O_NONBLOCK) == 0
    };
    if done { Ok(file) } else { Err(std::io::Error::last_os_error()) }
}

/// Waits for a packet, or for the time at which one is due; whether the standard input has ended.
fn wait(devices: &[Device], until: Option<Instant>) -> bool {
    let left = until.map(|due| due.saturating_duration_since(Instant::now()));
    let left = left.map(|left| if left <= AWAKE { Duration::ZERO } else { left - AWAKE });
    let timeout = left.map(|left| TimeSpec { seconds: left.as_secs() as i64, nanos: left.subsec_nanos().into() });
    let own = devices.iter().map(|device| device.file.as_raw_fd());
    let mut fds: Vec<PollFd> =
        std::iter::once(0).chain(own).map(|fd| PollFd { fd, events: POLLIN, revents: 0 }).collect();
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the list has as many entries as are said; the timeout outlives the call, or is none.
    unsafe { ppoll(fds.as_mut_ptr(), fds.len() as c_ulong, timeout, std::ptr::null()) };
    fds[0].revents != 0
}

fn relay(devices: &mut [Device], delay: Duration, nanos_per_byte: f64) -> (u64, u64, Vec<f64>) {
    // each sending side has its own queue: their packets are due in order
    let mut queues: Vec<VecDeque<Packet>> = devices.iter().map(|_| VecDeque::new()).collect();
    let (mut forwarded, mut dropped, mut late) = (0, 0, Vec::new());
    let mut buffer = vec![0u8; 1 << 16];
    loop {
        let mut idle = true;
        for from in 0..devices.len() {
            let len = match devices[from].file.read(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                // a device whose namespace is going away
                Err(_) => continue,
            };
            idle = false;
            let packet = &buffer[..len];
            let to = packet.get(19).map_or(usize::MAX, |last| usize::from(*last).wrapping_sub(1));
            if len < 20 || packet[0] >> 4 != 4 || to >= devices.len() || to == from {
                continue;
            }
            if queues[from].len() >= QUEUE {
                dropped += 1;
                continue;
            }
            let sent = devices[from].free.max(Instant::now()) + Duration::from_nanos((len as f64 * nanos_per_byte) as u64);
            devices[from].free = sent;
            queues[from].push_back(Packet { to, due: sent + delay, bytes: packet.to_vec() });
        }
        for queue in &mut queues {
            while let Some(packet) = queue.pop_front_if(|packet| packet.due <= Instant::now()) {
                idle = false;
                late.push(packet.due.elapsed().as_secs_f64() * 1e6);
                // a device that is down, or full, loses packets as any other
                match devices[packet.to].file.write(&packet.bytes) {
                    Ok(_) => forwarded += 1,
                    Err(_) => dropped += 1,
                }
            }
        }
        if idle {
            let next = queues.iter().filter_map(|queue| queue.front()).map(|packet| packet.due).min();
            if wait(devices, next) {
                return (forwarded, dropped, late);
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, prefix, count, delay, rate] = &arguments[..] else {
        eprintln!("usage: relay PREFIX COUNT DELAY_US MBIT_PER_S");
        std::process::exit(2);
    };
    let number = |text: &str| {
        text.parse::<f64>().ok().filter(|number| *number >= 0.0).unwrap_or_else(|| {
            eprintln!("relay: {text:?} is not a number");
            std::process::exit(2);
        })
    };
    let (count, delay, rate) = (number(count) as usize, number(delay), number(rate));
    // SAFETY: no pointers cross.
    unsafe { prctl(PR_SET_TIMERSLACK, 1) };
    let mut devices: Vec<Device> = Vec::new();
    for device in 0..count {
        let name = format!("{prefix}{device}");
        match open(&name) {
            Ok(file) => devices.push(Device { file, free: Instant::now() }),
            Err(error) => {
                eprintln!("relay: device {name}: {error}");
                std::process::exit(1);
            }
        }
    }
    println!("ready");
    let _ = std::io::stdout().flush();
    let (forwarded, dropped, mut late) =
        relay(&mut devices, Duration::from_nanos((delay * 1e3) as u64), 8e3 / rate.max(1e-3));
    late.sort_by(f64::total_cmp);
    let at = |part: f64| late.get((part * late.len() as f64) as usize).copied().unwrap_or_default();
    eprintln!(
        "relay: {forwarded} packets, {dropped} dropped; later than stated by {:.0} us (median), {:.0} us (99 %)",
        at(0.5),
        at(0.99)
    );
}
