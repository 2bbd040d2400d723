//! Interruptible waiting for the model's thread.

use crate::error::Error;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Whether the caller still waits, for methods whose names end in `_while`: asked on the caller's thread every 20 ms, so that a program can handle
/// signals meanwhile. Other methods block until they are woken.
pub type WaitCheck<'a> = &'a mut dyn FnMut() -> bool;

/// How often the caller is asked.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// The next value, waited for as long as `go_on` answers true, if it is given; none when the other end has gone.
///
/// # Errors
/// The caller does not wait any longer.
pub(crate) fn receive<T>(receiver: &Receiver<T>, go_on: Option<WaitCheck<'_>>) -> Result<Option<T>, Error> {
    let Some(go_on) = go_on else { return Ok(receiver.recv().ok()) };
    // asked before each value, so that a caller to whom values come quickly can stop, too
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
    fn a_caller_can_give_up() {
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
