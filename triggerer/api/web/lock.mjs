// Removes what names hosts from the lock: npm writes where to give its authors money.
import { readFileSync, writeFileSync } from 'node:fs'

const lock = JSON.parse(readFileSync('package-lock.json', 'utf8'))
for (const one of Object.values(lock.packages)) {
  delete one.funding
  delete one.resolved
}
writeFileSync('package-lock.json', JSON.stringify(lock, null, 2) + '\n')
