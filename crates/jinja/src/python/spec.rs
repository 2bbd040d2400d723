//! Format specifications: width, alignment, precision and kind of a field.

use super::number::{digits, formatted, grouped};
use crate::error::{Error, Result};
use crate::text::{Builder, TemplateString};
use crate::value::Value;

/// Maximum number of digits after the point.
const MAX_PRECISION: usize = 400;

/// Format specification of a field.
#[derive(Clone, Copy)]
pub(crate) struct FormatSpec {
    pub(crate) fill: char,
    /// `<`, `>`, `^` or `=`. `None` selects the default of the value's type.
    pub(crate) align: Option<char>,
    pub(crate) sign: char,
    pub(crate) alternate: bool,
    pub(crate) width: usize,
    pub(crate) separator: Option<char>,
    pub(crate) precision: Option<usize>,
    pub(crate) kind: char,
}

impl FormatSpec {
    pub(crate) const PLAIN: FormatSpec = FormatSpec {
        fill: ' ',
        align: None,
        sign: '-',
        alternate: false,
        width: 0,
        separator: None,
        precision: None,
        kind: 's',
    };

    /// Checks the precision. `format!` panics if it exceeds u16::MAX.
    pub(crate) fn check(&self) -> Result<()> {
        match self.precision {
            // For strings the precision only truncates, at any length.
            Some(precision) if precision > MAX_PRECISION && self.kind != 's' && self.kind != 'r' => {
                Err(Error::limit(format!("a precision of {precision} digits; the limit is {MAX_PRECISION}")))
            }
            _ => Ok(()),
        }
    }

    /// Writes a string, truncated to the precision and padded to the width.
    pub(crate) fn text(&self, text: &TemplateString, out: &mut Builder) -> Result<()> {
        out.meter().touch(text.len())?;
        let cut = match self.precision {
            Some(most) => {
                let end = text.as_str().char_indices().nth(most).map_or(text.len(), |(at, _)| at);
                text.slice(0..end)
            }
            None => text.clone(),
        };
        let length = cut.as_str().chars().count();
        let room = self.width.saturating_sub(length);
        let before = match self.align.unwrap_or('<') {
            '>' | '=' => room,
            '^' => room / 2,
            _ => 0,
        };
        out.pad(self.fill, before)?;
        out.text(&cut)?;
        out.pad(self.fill, room - before)
    }

    /// Writes a number. Returns an error for other values.
    pub(crate) fn number(&self, value: &Value, out: &mut Builder) -> Result<()> {
        self.check()?;
        let (negative, prefix, body) = self.parts(value)?;
        let sign = match (negative, self.sign) {
            (true, _) => "-",
            (false, '+') => "+",
            (false, ' ') => " ",
            _ => "",
        };
        let length = sign.len() + prefix.len() + body.chars().count();
        let room = self.width.saturating_sub(length);
        // `=` pads between the sign or prefix and the digits: -0042, 0x00ff.
        let (before, inside) = match self.align.unwrap_or('>') {
            '=' => (0, room),
            '^' => (room / 2, 0),
            '<' => (0, 0),
            _ => (room, 0),
        };
        out.pad(self.fill, before)?;
        out.push(sign, false)?;
        out.push(prefix, false)?;
        out.pad(self.fill, inside)?;
        out.push(&body, false)?;
        out.pad(self.fill, room - before - inside)
    }

    /// Splits a number into whether it is negative, the prefix of its base, and its digits.
    fn parts(&self, value: &Value) -> Result<(bool, &'static str, String)> {
        let wrong = || {
            Error::value(format!(
                "a value of type {} cannot be formatted as {:?}",
                value.type_name(),
                self.kind
            ))
        };
        let integral = matches!(self.kind, 'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'b' | 'c' | 'n');
        if integral {
            let n = value.as_int().ok_or_else(wrong)?;
            if self.kind == 'c' {
                let c = u32::try_from(n).ok().and_then(char::from_u32).ok_or_else(wrong)?;
                return Ok((false, "", c.to_string()));
            }
            let mut body = digits(n.unsigned_abs(), self.kind);
            // In printf-style formats the precision of an integer is its minimum number of digits.
            if let Some(least) = self.precision {
                body = format!("{body:0>least$}");
            }
            if let Some(separator) = self.separator {
                body = grouped(&body, separator);
            }
            let prefix = match (self.alternate, self.kind) {
                (true, 'x') => "0x",
                (true, 'X') => "0X",
                (true, 'o') => "0o",
                (true, 'b') => "0b",
                _ => "",
            };
            return Ok((n < 0, prefix, body));
        }
        let f = value.as_float().ok_or_else(wrong)?;
        let precision = self.precision.unwrap_or(6);
        let mut body = match self.kind {
            '%' => formatted(f * 100.0, 'f', precision, false),
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => formatted(f, self.kind, precision, self.alternate),
            _ => return Err(wrong()),
        };
        if let Some(separator) = self.separator {
            body = grouped(&body, separator);
        }
        if self.kind == '%' {
            body.push('%');
        }
        // Python writes the sign of -0.0, but not that of a NaN.
        Ok((f.is_sign_negative() && !f.is_nan(), "", body))
    }
}

/// Reads a width or precision and returns it with its length; (0, 0) without digits.
pub(crate) fn number_at(text: &str) -> Result<(usize, usize)> {
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    if length == 0 {
        return Ok((0, 0));
    }
    let number =
        text[..length].parse().map_err(|_| Error::limit("a width or precision in a format is too large"))?;
    Ok((number, length))
}
