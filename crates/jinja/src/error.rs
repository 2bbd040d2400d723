//! Template errors.

use std::fmt;

/// What kind of failure ended the parsing or rendering of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The source does not follow the grammar.
    Syntax,
    /// A statement, filter, test or method that this dialect does not have.
    Unsupported,
    /// One of the [`TemplateLimits`](crate::TemplateLimits) was reached.
    Limit,
    /// A name or attribute that does not exist was used as a value.
    Undefined,
    /// An operation on values of the wrong type or outside their range.
    Value,
    /// The template called `raise_exception`.
    Raised,
}

/// A failure with its message and the line of the template where it occurred.
#[derive(Clone, Debug)]
pub struct Error {
    // Boxed: `Result<Value>` is the type of every recursive call, and a large error would enlarge
    // each frame.
    inner: Box<ErrorDetails>,
}

#[derive(Clone, Debug)]
struct ErrorDetails {
    kind: ErrorKind,
    message: String,
    line: u32,
}

/// Maximum length of a message in bytes.
// `raise_exception` takes a text of any length.
const MAX_MESSAGE: usize = 2000;

impl Error {
    /// Builds an error without a line.
    pub(crate) fn new(kind: ErrorKind, message: impl AsRef<str>) -> Error {
        let mut clean = String::new();
        for c in message.as_ref().chars() {
            // The limit applies to the escaped text, so control characters cannot make a message
            // longer.
            if clean.len() >= MAX_MESSAGE {
                clean.push('…');
                break;
            }
            // A message may contain text of the template, and is printed on terminals: an escape
            // sequence must not reach them.
            if c.is_control() {
                clean.extend(c.escape_default());
            } else {
                clean.push(c);
            }
        }
        Error { inner: Box::new(ErrorDetails { kind, message: clean, line: 0 }) }
    }

    pub(crate) fn syntax(line: u32, message: impl AsRef<str>) -> Error {
        Error::new(ErrorKind::Syntax, message).at(line)
    }

    pub(crate) fn limit(message: impl AsRef<str>) -> Error {
        Error::new(ErrorKind::Limit, message)
    }

    pub(crate) fn value(message: impl AsRef<str>) -> Error {
        Error::new(ErrorKind::Value, message)
    }

    pub(crate) fn unsupported(message: impl AsRef<str>) -> Error {
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Sets the line, unless an inner statement has set it.
    pub(crate) fn at(mut self, line: u32) -> Error {
        if self.inner.line == 0 {
            self.inner.line = line;
        }
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The message without the line.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// The line of the template, counted from 1; 0 if unknown.
    pub fn line(&self) -> u32 {
        self.inner.line
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inner.line {
            0 => f.write_str(&self.inner.message),
            line => write!(f, "{} (line {line})", self.inner.message),
        }
    }
}

impl std::error::Error for Error {}

pub(crate) type Result<T> = std::result::Result<T, Error>;
