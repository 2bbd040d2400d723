//! Interruptible waiting for the model's thread.

use crate::error::Error;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Returns whether the caller still waits, for methods whose names end in `_while`. It is called on
/// the caller's thread every 20 ms, so that a program can handle signals. Other methods block until
/// they are woken.
pub type WaitCheck<'a> = &'a mut dyn FnMut() -> bool;

/// Time between two calls of a [`WaitCheck`].
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// Waits for the next value while `go_on` returns true, or without a limit. `None` if the sender
/// was dropped.
///
/// # Errors
/// If `go_on` returns false.
pub(crate) fn receive<T>(receiver: &Receiver<T>, go_on: Option<WaitCheck<'_>>) -> Result<Option<T>, Error> {
    let Some(go_on) = go_on else { return Ok(receiver.recv().ok()) };
    // Called before each value, not only after a timeout: otherwise a caller that gets values
    // quickly could never stop.
    while go_on() {
        match receiver.recv_timeout(PAUSE) {
            Ok(value) => return Ok(Some(value)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    Err(Error::cancelled())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_caller_can_stop_waiting() {
        let (sender, receiver) = channel::<u32>();
        let mut asked = 0;
        let waited = receive(
            &receiver,
            Some(&mut || {
                asked += 1;
                asked < 3
            }),
        );
        assert_eq!(waited, Err(Error::cancelled()));
        assert_eq!(asked, 3);
        sender.send(7).unwrap();
        sender.send(8).unwrap();
        drop(sender);
        assert_eq!(receive(&receiver, Some(&mut || false)), Err(Error::cancelled()));
        assert_eq!(receive(&receiver, Some(&mut || true)), Ok(Some(7)));
        assert_eq!(receive(&receiver, None), Ok(Some(8)));
        assert_eq!(receive(&receiver, None), Ok(None));
    }
}
