// Who is signed in, and what the role allows. The server decides; the page only greys out what it would refuse.

import { address, connection, get, send } from './api.svelte'

export const session = $state({ name: '', role: '' })

export async function readSession() {
  try {
    const found = await get<{ name: string; role: string }>(address('/whoami'))
    session.name = found.name
    session.role = found.role
  } catch {
    // Not signed in, or the service is away: the next reads say so.
  }
}

export async function signOut() {
  await send('DELETE', address('/session')).catch(() => undefined)
  session.name = session.role = ''
  connection.needsLogin = true
}

const order = ['viewer', 'operator', 'admin']

/** Return whether the role is enough. While the role is unknown, the server alone decides. */
export function may(role: string): boolean {
  return session.role === '' || order.indexOf(session.role) >= order.indexOf(role)
}
