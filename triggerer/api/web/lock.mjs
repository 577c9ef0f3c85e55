// Removes the fields of the lock file that name hosts: `resolved`, and `funding`, which asks for donations.
import { readFileSync, writeFileSync } from 'node:fs'

const lock = JSON.parse(readFileSync('package-lock.json', 'utf8'))
for (const one of Object.values(lock.packages)) {
  delete one.funding
  delete one.resolved
}
writeFileSync('package-lock.json', JSON.stringify(lock, null, 2) + '\n')
