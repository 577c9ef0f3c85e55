// The service's clock. Ages on the page are counted by it, because the reader's clock may be minutes wrong.

/** A `Date` header has whole seconds, and the answer takes a moment to arrive. */
const TOLERANCE_MS = 5000

/** How far the reader's clock is ahead of the service's; 0 within the tolerance. */
let ahead = 0

/** Compare the clocks by an answer's `Date` header. */
export function hearDate(answer: Response) {
  const off = Date.now() - Date.parse(answer.headers.get('date') ?? '')
  // A smaller difference is left as it is, so that ages do not jump with each answer.
  if (Math.abs(off - ahead) > TOLERANCE_MS) ahead = Math.abs(off) > TOLERANCE_MS ? off : 0
}

/** Return the present time by the service's clock, in milliseconds since 1970. */
export function serviceNow(): number {
  return Date.now() - ahead
}
