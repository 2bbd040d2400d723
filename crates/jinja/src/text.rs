//! Strings that track which of their bytes came from the inputs ("content").

use crate::error::{Error, Result};
use crate::meter::{Meter, MeterCharge};
use std::ops::Range;
use std::rc::Rc;

/// Bytes charged per string in addition to its characters: the handle, the buffer's header, and the
/// allocator's overhead.
const OVERHEAD: usize = 112;

/// An immutable string, or a slice of one. Slices share the buffer.
#[derive(Clone)]
pub(crate) struct TemplateString {
    buffer: Rc<Buffer>,
    start: u32,
    end: u32,
}

struct Buffer {
    text: Box<str>,
    /// Byte ranges that came from the inputs, sorted and not adjacent.
    content: Box<[(u32, u32)]>,
    ascii: bool,
    // Released when the last slice of the buffer is dropped.
    _charge: MeterCharge,
}

impl TemplateString {
    pub(crate) fn trusted(meter: &Rc<Meter>, text: &str) -> Result<TemplateString> {
        TemplateString::from_str(meter, text, false)
    }

    pub(crate) fn from_str(meter: &Rc<Meter>, text: &str, content: bool) -> Result<TemplateString> {
        let mut builder = Builder::with_capacity(meter, text.len())?;
        builder.push(text, content)?;
        Ok(builder.finish())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.buffer.text[self.start as usize..self.end as usize]
    }

    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether the whole buffer is ASCII, so that byte and character positions are equal. A slice
    /// of a buffer that is not ASCII returns false even if the slice itself is.
    pub(crate) fn is_ascii(&self) -> bool {
        self.buffer.ascii
    }

    /// Number of characters (Python's `len`).
    pub(crate) fn char_count(&self, meter: &Meter) -> Result<usize> {
        if self.is_ascii() {
            return Ok(self.len());
        }
        meter.touch(self.len())?;
        Ok(self.as_str().chars().count())
    }

    /// Returns a slice by byte positions, which must lie on character boundaries.
    pub(crate) fn slice(&self, range: Range<usize>) -> TemplateString {
        // Callers pass positions that a template chose; a range beyond the end is empty.
        let (start, end) = (range.start.min(self.len()) as u32, range.end.min(self.len()) as u32);
        TemplateString {
            buffer: Rc::clone(&self.buffer),
            start: self.start + start,
            end: self.start + end.max(start),
        }
    }

    /// Converts a subslice of [`TemplateString::as_str`] to a slice that keeps the origins.
    pub(crate) fn part(&self, part: &str) -> TemplateString {
        // The result of `trim_matches` or `strip_prefix` carries no position. Its address does,
        // because it points into the same buffer.
        let offset = (part.as_ptr() as usize).saturating_sub(self.as_str().as_ptr() as usize);
        self.slice(offset..offset + part.len())
    }

    /// Maximal runs of one origin, each with whether it came from the inputs.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (&str, bool)> {
        let end = self.end;
        let mut at = self.start;
        let mut spans = self.spans().iter().peekable();
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let start = at;
            let content = match spans.peek() {
                Some(span) if span.0 <= at => {
                    at = span.1.min(end);
                    spans.next();
                    true
                }
                Some(span) => {
                    at = span.0;
                    false
                }
                None => {
                    at = end;
                    false
                }
            };
            Some((&self.buffer.text[start as usize..at as usize], content))
        })
    }

    /// The content ranges of the buffer that overlap this slice.
    fn spans(&self) -> &[(u32, u32)] {
        let spans = &self.buffer.content;
        // The ranges are sorted, so a slice of a long text with many ranges costs two binary
        // searches.
        let first = spans.partition_point(|span| span.1 <= self.start);
        let last = spans.partition_point(|span| span.0 < self.end);
        &spans[first..last.max(first)]
    }

    /// Whether any byte came from the inputs.
    pub(crate) fn has_content(&self) -> bool {
        !self.spans().is_empty()
    }
}

/// A string under construction. Every addition is charged before it is allocated.
pub(crate) struct Builder {
    text: String,
    content: Vec<(u32, u32)>,
    charge: MeterCharge,
    limit: usize,
}

impl Builder {
    pub(crate) fn new(meter: &Rc<Meter>) -> Result<Builder> {
        Builder::with_capacity(meter, 0)
    }

    pub(crate) fn with_capacity(meter: &Rc<Meter>, bytes: usize) -> Result<Builder> {
        let charge = meter.charge(OVERHEAD.saturating_add(bytes))?;
        // Only the output has a limit of its own. Memory bounds all other strings.
        Ok(Builder { text: String::with_capacity(bytes), content: Vec::new(), charge, limit: usize::MAX })
    }

    /// Builder for the output of a rendering, which has its own length limit.
    pub(crate) fn output(meter: &Rc<Meter>) -> Result<Builder> {
        let mut builder = Builder::new(meter)?;
        builder.limit = meter.limits().output;
        Ok(builder)
    }

    pub(crate) fn meter(&self) -> &Rc<Meter> {
        self.charge.meter()
    }

    fn make_room(&mut self, bytes: usize) -> Result<()> {
        self.meter().touch(bytes)?;
        let needed = self.text.len().saturating_add(bytes);
        if needed > self.limit {
            return Err(Error::limit(format!("its output is longer than the limit of {} bytes", self.limit)));
        }
        let capacity = self.text.capacity();
        if needed > capacity {
            // Doubling here, instead of in `String`, makes the charged size equal to the allocated
            // one.
            let larger = needed.max(capacity.saturating_mul(2)).max(32);
            self.charge.grow(larger - capacity)?;
            self.text.reserve_exact(larger - self.text.len());
        }
        Ok(())
    }

    /// Appends `text`; `content` says whether it came from the inputs.
    pub(crate) fn push(&mut self, text: &str, content: bool) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.make_room(text.len())?;
        let start = self.text.len() as u32;
        self.text.push_str(text);
        if content { self.mark(start) } else { Ok(()) }
    }

    /// Marks everything from `start` on as content.
    fn mark(&mut self, start: u32) -> Result<()> {
        let end = self.text.len() as u32;
        match self.content.last_mut() {
            // Merge adjacent ranges: character-wise operations such as `reverse` would otherwise
            // store a range per character.
            Some(last) if last.1 == start => last.1 = end,
            _ => {
                if self.content.len() == self.content.capacity() {
                    let more = self.content.capacity().max(2);
                    self.charge.grow(more * 16)?;
                    self.content.reserve_exact(more);
                }
                self.content.push((start, end));
            }
        }
        Ok(())
    }

    pub(crate) fn char(&mut self, c: char, content: bool) -> Result<()> {
        self.push(c.encode_utf8(&mut [0; 4]), content)
    }

    /// Appends a string `times` times.
    pub(crate) fn repeat(&mut self, text: &TemplateString, times: usize) -> Result<()> {
        // Charge all repetitions first, so that a huge count fails before the loop starts.
        self.make_room(text.len().saturating_mul(times))?;
        for _ in 0..times {
            self.text(text)?;
        }
        Ok(())
    }

    /// Appends padding, which counts as the template's own text.
    pub(crate) fn pad(&mut self, c: char, times: usize) -> Result<()> {
        self.make_room(times.saturating_mul(c.len_utf8()))?;
        for _ in 0..times {
            // Not `Builder::push`: `make_room` has charged all of them.
            self.text.push(c);
        }
        Ok(())
    }

    /// Appends a string and its content ranges.
    pub(crate) fn text(&mut self, text: &TemplateString) -> Result<()> {
        // Common case: one copy instead of one per run.
        if !text.has_content() {
            return self.push(text.as_str(), false);
        }
        for (run, content) in text.runs() {
            self.push(run, content)?;
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> TemplateString {
        let end = self.text.len() as u32;
        // `into_boxed_str` below frees the spare capacity.
        self.charge.shrink_to(OVERHEAD + self.text.len() + self.content.len() * 8);
        let text = self.text.into_boxed_str();
        let ascii = text.is_ascii();
        let content = self.content.into_boxed_slice();
        TemplateString {
            buffer: Rc::new(Buffer { text, content, ascii, _charge: self.charge }),
            start: 0,
            end,
        }
    }

    /// The text, and the byte ranges that came from the inputs.
    pub(crate) fn into_parts(self) -> (String, Vec<Range<usize>>) {
        let ranges = self.content.iter().map(|&(from, to)| from as usize..to as usize).collect();
        (self.text, ranges)
    }
}
